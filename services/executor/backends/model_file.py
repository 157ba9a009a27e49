"""Where the file of a version lies, by the configuration; for backends that have one.

Knows nothing of what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.pb import model_config_pb2


def model_file(
    config: model_config_pb2.ModelConfig, version_path: Path, default: str, capability: str = ""
) -> Path:
    """The file or directory; capability is the GPU's, such as 8.6, which may have one of its own.

    Raises:
        NotFound: it is not there.
    """
    name = config.cc_model_filenames.get(capability) or config.default_model_filename or default
    return existing(config, version_path / name)


def existing(config: model_config_pb2.ModelConfig, path: Path) -> Path:
    """The path, if it is there.

    Raises:
        NotFound: it is not there.
    """
    if not path.exists():
        raise NotFound(
            f"failed to load '{config.name}': unable to find '{path}' for model '{config.name}'"
        )
    return path
