"""Overrides of a load request: a configuration and files in place of those in the repository.

Their directory is deleted when no OverrideDirectory refers to it and no executor has a model from
it. If a scheduler is killed, the next one uses the directory.
"""

# layout: not pure, uses threading

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, cast

from google.protobuf import json_format

from nereid.core.errors import InvalidArgument
from nereid.core.files.temporary_directories import OVERRIDE, TemporaryDirectory, is_temporary
from nereid.core.permitted_models import PERMITTED_MODELS
from nereid.model_config.validation.file_names import is_inside
from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.override_json import as_declared, parse_object
from nereid_scheduler.core.models.version_change import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor

    from nereid.pb import kserve_pb2

_CONFIG: Final = "config"
_FILE: Final = "file:"
# Each small file costs time of the disk, which all models share.
_MAX_FILES: Final = 1024
_MAX_DEPTH: Final = 16


@dataclass(frozen=True, slots=True)
class Override:
    """Configuration as JSON, and files by their paths in the model's directory."""

    config: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    # Where an earlier scheduler has written the files; empty without one.
    directory: str = ""


class OverrideDirectory:
    """Temporary directory that is deleted together with this object."""

    def __init__(self, directory: TemporaryDirectory) -> None:
        self.path = directory.path
        weakref.finalize(self, _begin_removal, directory)


def _begin_removal(directory: TemporaryDirectory) -> None:
    """Delete the directory in a thread, since the event loop must not wait for the disk."""
    removal = Thread(target=directory.release, name="removal")
    try:
        removal.start()
    except RuntimeError:
        # The interpreter is shutting down.
        directory.release()


def read_override(
    parameters: Mapping[str, kserve_pb2.ModelRepositoryParameter],
) -> Override | None:
    """Return a load request's override, if any; raise InvalidArgument for a bad parameter."""
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
        elif name not in (PERMITTED_MODELS, VERSION):
            raise InvalidArgument(f"unrecognized load parameter '{name}'.")
    if VERSION in parameters and (files or config is not None):
        raise InvalidArgument(
            f"load parameter '{VERSION}' cannot be combined with a configuration or files."
        )
    if config is None:
        return Override("", files) if files else None
    return Override(config, files)


def _expect(name: str, kind: str | None, expected: str) -> None:
    if kind != expected:
        raise InvalidArgument(
            f"invalid value type for load parameter '{name}', expected {expected}."
        )


def parse_override(text: str) -> model_config_pb2.ModelConfig:
    """Return the configuration of an override, which replaces the whole config.pbtxt."""
    if not text:
        raise InvalidArgument("Load parameter 'config' must be specified for model file override")
    try:
        config = model_config_pb2.ModelConfig()
        document = as_declared(parse_object(text), cast("Descriptor", config.DESCRIPTOR))
        return json_format.ParseDict(document, config)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        # The other lines have the names of all fields.
        text = str(error).partition("\n")[0]
        raise InvalidArgument(f"Invalid config override: {text}") from error


def write_files(files: Mapping[str, bytes], former: str = "") -> OverrideDirectory:
    """Write an override's files to a directory of their own; reuse `former` if it has these files.

    Executors need not reload a model from `former`. Raises InvalidArgument if a path leads out of
    the model's directory, and OSError.
    """
    if len(files) > _MAX_FILES:
        raise InvalidArgument(f"a load request has at most {_MAX_FILES} files, not {len(files)}")
    for name in files:
        if name.count("/") > _MAX_DEPTH:
            short = f"file:{name[:64]}..."
            raise InvalidArgument(
                f"Invalid file parameter '{short}': it has more than {_MAX_DEPTH} folders"
            )
        if not is_inside(name):
            raise InvalidArgument(
                f"Invalid file parameter 'file:{name}': it must stay within the model's directory"
            )
    known = _former_directory(former, files) if former else None
    if known is not None:
        return known
    directory = OverrideDirectory(TemporaryDirectory.make(OVERRIDE))
    for name, content in files.items():
        path = directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def _former_directory(former: str, files: Mapping[str, bytes]) -> OverrideDirectory | None:
    path = Path(former)
    if not is_temporary(path, OVERRIDE):
        return None
    try:
        # Even if the files differ, this object deletes the directory. Nothing else would.
        directory = OverrideDirectory(TemporaryDirectory(path))
        same = all(_has_content(path / name, content) for name, content in files.items())
        return directory if same else None
    except OSError:
        return None


def _has_content(path: Path, content: bytes) -> bool:
    return not path.is_symlink() and path.is_file() and path.read_bytes() == content
