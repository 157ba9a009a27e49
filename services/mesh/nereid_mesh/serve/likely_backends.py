"""Guess which backends a repository's models need (--preload-backend), from file names."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.known_backends import model_file_backend

if TYPE_CHECKING:
    from collections.abc import Iterable

# Most models of a repository are like the first ones.
_MAX_MODELS: Final = 32


def likely_backends(repositories: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the likely backends without repetition, in the order of the models."""
    backends: dict[str, None] = {}
    for repository in repositories:
        for model in islice(_entries(Path(repository)), _MAX_MODELS):
            for version in _entries(model):
                backend = model_file_backend({file.name for file in _entries(version)})
                if version.name.isdecimal() and backend is not None:
                    backends[backend[0]] = None
    return tuple(backends)


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []
