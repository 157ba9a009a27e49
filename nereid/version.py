"""The version of the installed distribution."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

_DISTRIBUTION = "nereid-mesh"
_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def version() -> str:
    """In a checkout that is not installed, what pyproject.toml says; without one, "unknown"."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        pass
    try:
        project = tomllib.loads(_PYPROJECT.read_text())["project"]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return "unknown"
    return f"{project['version']} (checkout)"
