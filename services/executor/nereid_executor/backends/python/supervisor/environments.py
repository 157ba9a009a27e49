"""A model's own Python environment (EXECUTION_ENV_PATH): a directory or a conda-pack archive.

Environments that are built for models' packages are directories, too.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from nereid.backends.file_digests import digest_of
from nereid.config.inherited_secrets import public_environ
from nereid.core.errors import Internal, InvalidArgument
from nereid.core.files.temporary_directories import PYTHON_ENV, TemporaryDirectory
from nereid_executor.backends.python.supervisor import archives

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.pb import model_config_pb2

ENVIRONMENT_KEY: Final = "EXECUTION_ENV_PATH"
_UNPACK_TIMEOUT_S: Final = 600.0
_FOLDER: Final = "env"

_lock = threading.Lock()
# Maps an archive's digest to the directory that the archive is unpacked in.
_unpacked: dict[bytes, TemporaryDirectory] = {}


def python_of(model: str, path: Path) -> str:
    """Return the path of an environment's interpreter. path may itself name an interpreter.

    Raises InvalidArgument without an interpreter, Internal if the path is missing or cannot be
    unpacked.
    """
    if not path.exists():
        raise Internal(f"Failed to get the canonical path for {path}.")
    directory = path
    if path.is_file():
        if os.access(path, os.X_OK) and not archives.is_archive(path):
            return str(path)
        directory = _unpack(model, path)
    python = directory / "bin" / "python"
    if not python.exists():
        raise InvalidArgument(
            f"model '{model}': EXECUTION_ENV_PATH '{path}' has no Python (bin/python) in it"
        )
    return str(python)


def with_environment(
    config: model_config_pb2.ModelConfig, path: Path
) -> model_config_pb2.ModelConfig:
    """Return the configuration of a model that runs in the environment built for its packages."""
    copy = type(config)()
    copy.CopyFrom(config)
    copy.parameters[ENVIRONMENT_KEY].string_value = str(path)
    return copy


def discard() -> None:
    """Remove the unpacked environments. Call this only when no worker needs them."""
    with _lock:
        while _unpacked:
            _, directory = _unpacked.popitem()
            directory.release()


def _unpack(model: str, path: Path) -> Path:
    with _lock:
        key = digest_of(path)
        if key not in _unpacked:
            directory = TemporaryDirectory.make(PYTHON_ENV)
            try:
                unpacked = directory.path / _FOLDER
                unpacked.mkdir()
                archives.unpack(path, unpacked)
                _relocate(unpacked)
            except (OSError, archives.UnpackError, subprocess.SubprocessError) as error:
                directory.release()
                raise Internal(
                    f"model '{model}': EXECUTION_ENV_PATH '{path}' cannot be unpacked: {error}"
                ) from error
            _unpacked[key] = directory
        return _unpacked[key].path / _FOLDER


def _relocate(directory: Path) -> None:
    """Run conda-unpack, which replaces the paths of the machine that packed the environment."""
    script = directory / "bin" / "conda-unpack"
    if os.access(script, os.X_OK):
        subprocess.run(
            [directory / "bin" / "python", script],
            check=True,
            timeout=_UNPACK_TIMEOUT_S,
            env=public_environ(),
            stdout=subprocess.DEVNULL,
        )
