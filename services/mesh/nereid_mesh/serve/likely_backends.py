"""The backends that the models of a repository most likely need, by a look at names of files.

For executors to import meanwhile (--preload-backend): a wrong guess costs time or memory, nothing
else. What is not a local directory has none.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.known_backends import model_file_backend

if TYPE_CHECKING:
    from collections.abc import Iterable

# A repository may have many models, most of which are like the first ones.
_MOST_MODELS: Final = 32


def likely_backends(repositories: Iterable[str]) -> tuple[str, ...]:
    """Their names, each once, in the order of their models."""
    found: dict[str, None] = {}
    for repository in repositories:
        for model in islice(_entries(Path(repository)), _MOST_MODELS):
            for version in _entries(model):
                backend = model_file_backend({file.name for file in _entries(version)})
                if version.name.isdecimal() and backend is not None:
                    found[backend[0]] = None
    return tuple(found)


def _entries(path: Path) -> list[Path]:
    """What is in a directory; in anything else: nothing."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []
