"""Checks that a configuration names only files in the model's own folder; links may leave it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument, Unimplemented

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.pb.model_config_pb2 import ModelConfig


def validate_file_names(config: ModelConfig) -> None:
    """Raise NereidError if a file's name leads out of the model's folder."""
    for output in config.output:
        if not is_inside(output.label_filename):
            raise Unimplemented(
                f"label file path '{output.label_filename}' for output '{output.name}' in model"
                f" '{config.name}' is outside model directory"
            )
    for field, name in _file_names(config):
        if not is_inside(name):
            raise InvalidArgument(
                f"{field} '{name}' of model '{config.name}' must stay within the model's directory"
            )


def is_inside(name: str) -> bool:
    """Return whether a path relative to a folder stays in the folder; ignore links."""
    return not ("\0" in name or name.startswith("/") or ".." in PurePosixPath(name).parts)


def _file_names(config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "default_model_filename", config.default_model_filename
    for name in config.cc_model_filenames.values():
        yield "cc_model_filenames", name
    for name in config.model_operations.op_library_filename:
        yield "op_library_filename", name
    for sample in config.model_warmup:
        for tensor in sample.inputs.values():
            yield "input_data_file", tensor.input_data_file
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            yield "data_file", initial.data_file
