"""model_warmup: batches that an instance executes before it is ready.

As on Triton, a sample's batch has batch_size equal requests of one row. A sample that fails, fails
the load. Knows no model: it writes Batch messages and reads Executed messages.
"""

from __future__ import annotations

import random
from math import prod
from typing import TYPE_CHECKING, Final

from nereid.core.datatypes import BYTES, CONFIG_NUMBER, NAME_OF_CONFIG_NUMBER, byte_size
from nereid.core.errors import Internal, InvalidArgument
from nereid.core.regular_files import read_regular_file
from nereid.model_config.validation.costs import MAX_WARMUP_BYTES
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nereid.pb import model_config_pb2

_PIECE: Final = 1 << 20
# For bytes.translate(): a random byte becomes a BOOL element.
_TO_BOOLEANS: Final = bytes(byte & 1 for byte in range(256))


def warm_up(
    config: model_config_pb2.ModelConfig, model_path: Path, execute: Callable[[bytes], bytes]
) -> None:
    """Execute every sample of the configuration.

    Raises:
        NereidError: a sample is wrong, or the model fails on it.
    """
    for sample, batch in read_samples(config, model_path):
        for _ in range(max(1, sample.count)):
            reply = pb.Executed.FromString(execute(batch))
            errors = [each.error.message for each in reply.responses if each.HasField("error")]
            if errors:
                text = "".join(f"{error}; " for error in errors)
                raise InvalidArgument(f"failed to run warmup sample '{sample.name}': {text}")


def read_samples(
    config: model_config_pb2.ModelConfig, model_path: Path
) -> Iterator[tuple[model_config_pb2.ModelWarmup, bytes]]:
    """The samples that are to be executed, each with its Batch message.

    Raises:
        NereidError: a sample is wrong, or its file cannot be read.
    """
    for sample in config.model_warmup:
        if sample.batch_size:
            yield sample, _batch(config, sample, model_path / "warmup").SerializeToString()


def _batch(
    config: model_config_pb2.ModelConfig, sample: model_config_pb2.ModelWarmup, directory: Path
) -> pb.Batch:
    head = kserve_pb2.ModelInferRequest(model_name=config.name)
    member = pb.BatchMember()
    sequence = config.sequence_batching
    known = {tensor.name for tensor in config.input}
    known.update(control.name for control in sequence.control_input)
    known.update(state.input_name for state in sequence.state)
    for name, tensor in sample.inputs.items():
        if name not in known:
            # As on Triton, other tensors are ignored.
            continue
        if min(tensor.dims, default=0) < 0:
            raise InvalidArgument(
                f"warmup sample '{sample.name}': input '{name}' has variable dims"
            )
        datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
        batching = config.max_batch_size > 0
        shape = [1, *tensor.dims] if batching else list(tensor.dims)
        head.inputs.add(name=name, datatype=datatype, shape=shape)
        member.payloads.add(inline=_data(tensor, directory))
    member.head = head.SerializeToString()
    return pb.Batch(members=[member] * sample.batch_size)


def _data(tensor: model_config_pb2.ModelWarmup.Input, directory: Path) -> bytes:
    choice = tensor.WhichOneof("input_data_type")
    if choice == "input_data_file":
        return _file_data(tensor, directory)
    size = _size(tensor)
    if choice == "random_data" and tensor.data_type != CONFIG_NUMBER[BYTES]:
        # In pieces: the other threads of an executor wait for the interpreter's lock meanwhile.
        pieces = (min(_PIECE, size - start) for start in range(0, size, _PIECE))
        data = b"".join(map(random.randbytes, pieces))
        return data.translate(_TO_BOOLEANS) if tensor.data_type == CONFIG_NUMBER["BOOL"] else data
    return bytes(size)


def _size(tensor: model_config_pb2.ModelWarmup.Input) -> int:
    """The size of the tensor in bytes; for BYTES, that of as many empty elements."""
    datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
    size = byte_size(datatype, tensor.dims)
    return 4 * prod(tensor.dims) if size is None else size


def _file_data(tensor: model_config_pb2.ModelWarmup.Input, directory: Path) -> bytes:
    path = directory / tensor.input_data_file
    try:
        data = read_regular_file(path, MAX_WARMUP_BYTES)
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
    if tensor.data_type == CONFIG_NUMBER[BYTES]:
        return data
    size = _size(tensor)
    if len(data) < size:
        # Triton's text, without the space that it lacks.
        raise InvalidArgument(
            f"[request id: <id_unknown>] warmup setting expects {size} bytes, but the data provided"
            f" from {tensor.input_data_file}only has {len(data)} bytes"
        )
    return data[:size]
