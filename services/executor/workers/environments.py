"""EXECUTION_ENV_PATH: the Python of a model's own, in a directory or packed by conda-pack."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
import threading
from typing import TYPE_CHECKING, Final

from nereid.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

_UNPACK_LIMIT_S: Final = 600.0

_lock = threading.Lock()
# Packed environments that lie unpacked, by path and time of change; gone with the process.
_unpacked: dict[tuple[str, int], tempfile.TemporaryDirectory[str]] = {}


def python_of(model: str, path: Path) -> str:
    """The interpreter in an environment.

    Raises:
        InvalidArgument: there is none.
    """
    directory = path
    if path.is_file():
        if os.access(path, os.X_OK) and not tarfile.is_tarfile(path):
            return str(path)
        directory = path.__class__(_unpack(model, path))
    python = directory / "bin" / "python"
    if not python.exists():
        raise InvalidArgument(
            f"model '{model}': EXECUTION_ENV_PATH '{path}' has no Python (bin/python) in it"
        )
    return str(python)


def _unpack(model: str, path: Path) -> str:
    with _lock:
        key = str(path), path.stat().st_mtime_ns
        if key not in _unpacked:
            directory = tempfile.TemporaryDirectory(prefix="nereid-python-env-")
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(directory.name, filter="tar")
                _relocate(directory.name)
            except (OSError, tarfile.TarError, subprocess.SubprocessError) as error:
                directory.cleanup()
                raise Internal(
                    f"model '{model}': EXECUTION_ENV_PATH '{path}' cannot be unpacked: {error}"
                ) from error
            _unpacked[key] = directory
        return _unpacked[key].name


def _relocate(directory: str) -> None:
    """What conda-pack leaves to be done on arrival."""
    script = f"{directory}/bin/conda-unpack"
    if os.access(script, os.X_OK):
        subprocess.run(
            [f"{directory}/bin/python", script],
            check=True,
            timeout=_UNPACK_LIMIT_S,
            stdout=subprocess.DEVNULL,
        )
