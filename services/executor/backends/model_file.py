"""The path of a version's model file, by the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.pb import model_config_pb2


def find_model_file(
    config: model_config_pb2.ModelConfig, version_path: Path, default: str, capability: str = ""
) -> Path:
    """The file or directory.

    capability: the GPU's compute capability, such as 8.6, which may have a file of its own.

    Raises:
        NotFound: it does not exist.
    """
    name = config.cc_model_filenames.get(capability) or config.default_model_filename or default
    return require_file(config, version_path / name)


def require_file(config: model_config_pb2.ModelConfig, path: Path) -> Path:
    """Return the path.

    Raises:
        NotFound: it does not exist.
    """
    if not path.exists():
        raise NotFound(
            f"failed to load '{config.name}': unable to find '{path}' for model '{config.name}'"
        )
    return path
