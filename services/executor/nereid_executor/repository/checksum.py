"""The repository agent `checksum`. As on Triton, it refuses a model whose files have a wrong MD5.

A parameter "MD5:<path in the model's directory>" has the hexadecimal digest as its value.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.files.regular_files import open_regular_file
from nereid.model_config.validation.file_names import is_inside
from nereid.repository_agents import RepositoryAgent

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.repository_agents import AgentModel


class ChecksumAgent(RepositoryAgent):
    """Checks the files from which a version is loaded, but not the files of other versions."""

    def before_load(self, model: AgentModel) -> None:
        """Compare the digests of the model's files; raise NereidError if one differs."""
        for key, expected in sorted(model.parameters.items()):
            algorithm, colon, name = key.partition(":")
            if not colon:
                raise InvalidArgument(f"failed to parse key: {key}")
            if algorithm.lower() != "md5":
                raise Unimplemented(f"Unsupported checksum algorithm: {algorithm}")
            # The error would reveal the digest of a file outside the directory.
            if not is_inside(name):
                raise InvalidArgument(f"file '{name}' is not in the model's directory")
            folder = name.partition("/")[0]
            if not folder.isdecimal() or int(folder) == model.version:
                _check(model.directory / name, name, expected)


def _check(path: Path, name: str, expected: str) -> None:
    try:
        with open_regular_file(path) as file:
            digest = hashlib.file_digest(file, _md5).hexdigest()
    except OSError as error:
        raise InvalidArgument(
            f"failed to open text file for read {name}: {error.strerror}"
        ) from error
    if digest != expected:
        raise InvalidArgument(
            f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {digest}"
        )


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
