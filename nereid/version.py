"""Version of the installed distribution, and a check whether the hot modules are compiled."""

from __future__ import annotations

from importlib import util
from pathlib import Path

_DISTRIBUTION = "nereid-mesh"
_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
# One of the modules that setup.py compiles. Either all of them are compiled or none, so checking
# one module is enough.
_COMPILED_MODULE = "nereid.core.wire.varint"


def is_compiled() -> bool:
    """Return whether the modules that setup.py compiles are compiled in this installation.

    docs/operators/deploy.md describes the compiled form.
    """
    spec = util.find_spec(_COMPILED_MODULE)
    return spec is not None and not (spec.origin or "").endswith(".py")


def version(pyproject: Path = _PYPROJECT) -> str:
    """Return the version of the installed distribution.

    In a checkout that is not installed, the result is the version in pyproject.toml, or "unknown"
    if there is no such file.
    """
    # Import tomllib only when needed. A service does not need it at its start, because it calls
    # only is_compiled().
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
