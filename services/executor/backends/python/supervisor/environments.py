"""EXECUTION_ENV_PATH: a Python environment of a model's own, a directory or a conda-pack file."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Final

from nereid.config.inherited_secrets import public_environ
from nereid.core.errors import Internal, InvalidArgument

_UNPACK_TIMEOUT_S: Final = 600.0

_PREFIX: Final = "nereid-python-env-"
_LOCK: Final = ".nereid-lock"

_lock = threading.Lock()
# Unpacked archives, by path and time of change: the directory, and a lock file that this process
# holds for as long as it lives.
_unpacked: dict[tuple[str, int], tuple[str, int]] = {}


def python_of(model: str, path: Path) -> str:
    """The interpreter in an environment.

    Raises:
        InvalidArgument: there is none.
        Internal: the path does not exist, or cannot be unpacked.
    """
    if not path.exists():
        raise Internal(f"Failed to get the canonical path for {path}.")
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


def discard() -> None:
    """Remove the unpacked environments; call when no worker needs them any more."""
    with _lock:
        while _unpacked:
            _, (directory, lock) = _unpacked.popitem()
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _unpack(model: str, path: Path) -> str:
    with _lock:
        key = str(path), path.stat().st_mtime_ns
        if key not in _unpacked:
            _remove_abandoned()
            directory = tempfile.mkdtemp(prefix=_PREFIX)
            lock = os.open(f"{directory}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(directory, filter="tar")
                _relocate(directory)
            except (OSError, tarfile.TarError, subprocess.SubprocessError) as error:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock)
                raise Internal(
                    f"model '{model}': EXECUTION_ENV_PATH '{path}' cannot be unpacked: {error}"
                ) from error
            _unpacked[key] = directory, lock
        return _unpacked[key][0]


def _remove_abandoned() -> None:
    """Remove the environments of executors that were killed. Running ones hold their locks."""
    for lock_file in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)


def _relocate(directory: str) -> None:
    """Run conda-unpack, which replaces the paths of the machine that packed it."""
    script = f"{directory}/bin/conda-unpack"
    if os.access(script, os.X_OK):
        subprocess.run(
            [f"{directory}/bin/python", script],
            check=True,
            timeout=_UNPACK_TIMEOUT_S,
            env=public_environ(),
            stdout=subprocess.DEVNULL,
        )
