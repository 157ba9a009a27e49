"""Version of the installed distribution, and a check whether the hot modules are compiled."""

from __future__ import annotations

from importlib import util
from pathlib import Path

_DISTRIBUTION = "nereid-mesh"
_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Either all modules of setup.py are compiled or none.
_COMPILED_MODULE = "nereid.core.wire.varint"


def is_compiled() -> bool:
    """Return whether this installation is compiled (docs/operators/deploy.md)."""
    spec = util.find_spec(_COMPILED_MODULE)
    return spec is not None and not (spec.origin or "").endswith(".py")


def version(pyproject: Path = _PYPROJECT) -> str:
    """Return the installed version; in a mere checkout, that of pyproject.toml, or "unknown"."""
    # A service calls only is_compiled(), so its start does not need these modules.
    import tomllib  # noqa: PLC0415
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        pass
    try:
        project = tomllib.loads(pyproject.read_text())["project"]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        return "unknown"
    return f"{project['version']} (checkout)"
