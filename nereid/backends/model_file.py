"""Finds the model file of a version, under the name that the configuration gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.files.regular_files import find_special_file

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.pb import model_config_pb2

# Beginning of a Git LFS pointer file, and the maximum size of such a file in bytes.
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER: Final = 1023


def find_model_file(
    config: model_config_pb2.ModelConfig, version_path: Path, default: str, capability: str = ""
) -> Path:
    """Return the path of the model file, or of the directory that takes its place.

    capability: the GPU's compute capability, such as 8.6, which may have a file of its own. Raises
    NotFound, or InvalidArgument for a Git LFS pointer, a pipe or a device.
    """
    name = config.cc_model_filenames.get(capability) or config.default_model_filename or default
    path = require_file(config, version_path / name)
    # Runtimes also read other files of the version, such as weights.
    for place in (path, version_path):
        special = find_special_file(place)
        if special is not None:
            raise InvalidArgument(
                f"failed to load '{config.name}': '{special}' is a pipe or a device, not a file;"
                " remove it from the model's directory"
            )
    return path


def require_file(config: model_config_pb2.ModelConfig, path: Path) -> Path:
    """Return a path that exists and is no Git LFS pointer; raise NotFound or InvalidArgument."""
    if not path.exists():
        raise NotFound(
            f"failed to load '{config.name}': unable to find '{path}' for model '{config.name}'"
        )
    if path.is_file() and path.stat().st_size <= _MAX_POINTER:
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise InvalidArgument(
                    f"failed to load '{config.name}': '{path}' is a Git LFS pointer, not the file"
                    " itself: fetch that with git lfs pull"
                )
    return path
