"""Warm-up (model_warmup): batches that an instance executes before it is ready."""

from __future__ import annotations

import random
import threading
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nereid.core.errors import Internal, InvalidArgument
from nereid.core.files.regular_files import read_regular_file
from nereid.core.tensors.datatypes import BYTES, CONFIG_NUMBER, NAME_OF_CONFIG_NUMBER, byte_size
from nereid.core.wire.varint import decode_varint
from nereid.model_config.validation.costs import MAX_WARMUP_BYTES, check_warmup_size
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import BatchMessage, BatchRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nereid.pb import model_config_pb2

_PIECE: Final = 1 << 20
# This table turns a random byte into a BOOL element (bytes.translate()).
_TO_BOOLEANS: Final = bytes(byte & 1 for byte in range(256))
# Larger batches execute one at a time. After each there is a pause, as long as copying the batch
# takes, so that other work is done.
_LARGE_BYTES: Final = 1 << 22
_COPIED_BYTES_PER_S: Final = 1 << 30
# A model that hangs in its warm-up must not block other warm-ups for ever.
_TURN_TIMEOUT_S: Final = 10.0
_LENGTH_DELIMITED: Final = 2


class WarmupBatch(NamedTuple):
    """One batch of equal requests: a request's head and tensors, and the number of requests."""

    head: bytes
    tensors: list[bytes]
    size: int

    @property
    def byte_count(self) -> int:
        """Bytes of all tensors of the batch."""
        return self.size * sum(map(len, self.tensors))

    def to_message(self, *, parsed: bool) -> BatchMessage:
        """Return the batch as a message. parsed: with members, whose tensors are copies."""
        request = BatchRequest(0, self.head, [*self.tensors])
        message = BatchMessage(0, [request] * self.size, self.byte_count)
        if parsed:
            member = pb.BatchMember(head=self.head)
            for tensor in self.tensors:
                member.payloads.add(inline=tensor)
            message.members = [member] * self.size
        return message


class WarmupLoad(Protocol):
    """The load that an instance's warm-up is part of."""

    def wait_given_up(self, timeout_s: float) -> bool:
        """Wait for timeout_s, or until nobody wants the instance; return True if nobody does."""


class WarmupTurns:
    """Turns of the large batches of an executor's warm-ups, one after another. Thread-safe."""

    def __init__(self, timeout_s: float = _TURN_TIMEOUT_S) -> None:
        self._lock = threading.Lock()
        self._timeout_s = timeout_s

    def execute(self, batch: WarmupBatch, execute: Callable[[WarmupBatch], bytes]) -> bytes:
        """Execute a batch in its turn; if the wait is too long, out of turn."""
        if batch.byte_count < _LARGE_BYTES:
            return execute(batch)
        has_turn = self._lock.acquire(timeout=self._timeout_s)
        try:
            return execute(batch)
        finally:
            if has_turn:
                self._lock.release()


def warm_up(
    config: model_config_pb2.ModelConfig,
    model_path: Path,
    execute: Callable[[WarmupBatch], bytes],
    load: WarmupLoad,
    turns: WarmupTurns,
) -> bool:
    """Execute every sample; return False if the load was given up, or raise NereidError."""
    for sample, batch in read_samples(config, model_path):
        pause_s = batch.byte_count / _COPIED_BYTES_PER_S
        for _ in range(max(1, sample.count)):
            if load.wait_given_up(0.0):
                return False
            errors = errors_of(turns.execute(batch, execute))
            if errors:
                text = "".join(f"{error}; " for error in errors)
                raise InvalidArgument(f"failed to run warmup sample '{sample.name}': {text}")
            if batch.byte_count >= _LARGE_BYTES and load.wait_given_up(pause_s):
                return False
    return True


def read_samples(
    config: model_config_pb2.ModelConfig, model_path: Path
) -> Iterator[tuple[model_config_pb2.ModelWarmup, WarmupBatch]]:
    """Yield the samples to execute, with their batches; raise NereidError for a wrong one."""
    for sample in config.model_warmup:
        if sample.batch_size:
            batch = _batch(config, sample, model_path / "warmup")
            # A file of BYTES may have any size, so the size is checked.
            check_warmup_size(config.name, sample.name, batch.byte_count)
            yield sample, batch


def errors_of(executed: bytes) -> list[str]:
    """Return the errors in an Executed message. Its tensors may be large and are not parsed."""
    errors: list[str] = []
    for number, start, end in _fields(executed, 0, len(executed)):
        if number != pb.Executed.RESPONSES_FIELD_NUMBER:
            continue
        errors += [
            pb.ErrorStatus.FromString(executed[from_:to]).message
            for part, from_, to in _fields(executed, start, end)
            if part == pb.InferResponse.ERROR_FIELD_NUMBER
        ]
    return errors


def _fields(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    while position < end:
        tag, position = decode_varint(message, position)
        value, position = decode_varint(message, position)
        if tag & 7 == _LENGTH_DELIMITED:
            yield tag >> 3, position, position + value
            position += value


def _batch(
    config: model_config_pb2.ModelConfig, sample: model_config_pb2.ModelWarmup, directory: Path
) -> WarmupBatch:
    head = kserve_pb2.ModelInferRequest(model_name=config.name)
    tensors: list[bytes] = []
    sequence = config.sequence_batching
    known = {tensor.name for tensor in config.input}
    known.update(control.name for control in sequence.control_input)
    known.update(state.input_name for state in sequence.state)
    for name, tensor in sample.inputs.items():
        if name not in known:
            # As on Triton, tensors that the model does not have are ignored.
            continue
        if min(tensor.dims, default=0) < 0:
            raise InvalidArgument(
                f"warmup sample '{sample.name}': input '{name}' has variable dims"
            )
        datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
        batching = config.max_batch_size > 0
        shape = [1, *tensor.dims] if batching else list(tensor.dims)
        head.inputs.add(name=name, datatype=datatype, shape=shape)
        tensors.append(_data(tensor, directory))
    return WarmupBatch(head.SerializeToString(), tensors, sample.batch_size)


def _data(tensor: model_config_pb2.ModelWarmup.Input, directory: Path) -> bytes:
    choice = tensor.WhichOneof("input_data_type")
    if choice == "input_data_file":
        return _file_data(tensor, directory)
    size = _size(tensor)
    if choice == "random_data" and tensor.data_type != CONFIG_NUMBER[BYTES]:
        # Between the pieces, other threads of the executor get the interpreter's lock.
        sizes = (min(_PIECE, size - start) for start in range(0, size, _PIECE))
        pieces = []
        for piece in map(random.randbytes, sizes):
            is_boolean = tensor.data_type == CONFIG_NUMBER["BOOL"]
            pieces.append(piece.translate(_TO_BOOLEANS) if is_boolean else piece)
        return b"".join(pieces)
    return bytes(size)


def _size(tensor: model_config_pb2.ModelWarmup.Input) -> int:
    """Return a tensor's size in bytes. A BYTES tensor counts as if all its elements were empty."""
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
        # Triton's text, including the missing space.
        raise InvalidArgument(
            f"[request id: <id_unknown>] warmup setting expects {size} bytes, but the data provided"
            f" from {tensor.input_data_file}only has {len(data)} bytes"
        )
    return data[:size]
