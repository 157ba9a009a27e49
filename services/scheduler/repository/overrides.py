"""Overrides of a load request: a configuration, and files, in place of those in the repository.

Files are written to a directory that only this user may enter. It is deleted with the last
reference to its OverrideDirectory; executors on this machine find it by its path. The texts are
Triton's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf import json_format

from nereid.core.errors import InvalidArgument
from nereid.model_config.validation.file_names import is_inside
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb import kserve_pb2

_CONFIG: Final = "config"
_FILE: Final = "file:"


@dataclass(frozen=True, slots=True)
class Override:
    """A configuration as JSON, and files by their paths in the model's directory."""

    config: str
    files: Mapping[str, bytes] = field(default_factory=dict)


class OverrideDirectory:
    """A temporary directory that exists for as long as this object does."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nereid-model-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def read_override(
    parameters: Mapping[str, kserve_pb2.ModelRepositoryParameter],
) -> Override | None:
    """The override in a load request's parameters; None: load the model from its repository.

    Raises:
        InvalidArgument: a parameter is unknown, or of the wrong kind.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, parameter in sorted(parameters.items()):
        kind = parameter.WhichOneof("parameter_choice")
        if name == _CONFIG:
            _expect(name, kind, "string_param")
            config = parameter.string_param
        elif name.startswith(_FILE):
            _expect(name, kind, "bytes_param")
            files[name[len(_FILE) :]] = parameter.bytes_param
        else:
            raise InvalidArgument(f"unrecognized load parameter '{name}'.")
    if config is None:
        return Override("", files) if files else None
    return Override(config, files)


def _expect(name: str, kind: str | None, expected: str) -> None:
    if kind != expected:
        raise InvalidArgument(
            f"invalid value type for load parameter '{name}', expected {expected}."
        )


def parse_override(text: str) -> model_config_pb2.ModelConfig:
    """The configuration of an override, which replaces the whole config.pbtxt."""
    if not text:
        raise InvalidArgument("Load parameter 'config' must be specified for model file override")
    try:
        document = json.loads(text)
        if type(document) is not dict:
            raise InvalidArgument("Invalid config override: it must be a JSON object")
        return json_format.ParseDict(document, model_config_pb2.ModelConfig())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        # Without the names of all fields.
        text = str(error).partition("\n")[0]
        raise InvalidArgument(f"Invalid config override: {text}") from error


def write_files(files: Mapping[str, bytes]) -> OverrideDirectory:
    """Write the files of an override.

    Raises:
        InvalidArgument: a path leads out of the model's directory; nothing is left behind then.
        OSError: the disk is full, or a path is both a file and a directory.
    """
    directory = OverrideDirectory()
    for name, content in files.items():
        if not is_inside(name):
            raise InvalidArgument(
                f"Invalid file parameter 'file:{name}': it must stay within the model's directory"
            )
        path = directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory
