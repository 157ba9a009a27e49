"""The frames that an executor and a worker send each other over the socket between them.

Most bodies are JSON. BATCH, RESPONSES, CALL and CALL_RESPONSE frames carry tensors: a table of
64-bit numbers lists the sizes of the items, which follow, each padded to eight bytes. The readers
check everything, because a model's code may write to the socket.
"""

from __future__ import annotations

import struct
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    _Row = tuple[int, int, bytes, Sequence[Any]]

# Frames to the worker:

# Arguments of initialize(), paths, and the shared memory for the model's requests.
INITIALIZE = 1
# Like INITIALIZE, but calls only auto_complete_config().
DESCRIBE = 2
# A spec's number, and the inputs and outputs of all requests with this spec, as JSON.
SPEC = 3
BATCH = 4
# Cancels a request in flight, pauses it because its client cannot keep up, or resumes it.
CONTROL = 5
CALL_RESPONSE = 7
# Call the model's is_ready(). The body is the query's number.
READINESS_QUERY = 8
FINALIZE = 9
# Serve the instance's stream: the scheduler's address, and metadata for the instance.
SERVE = 10
# Stop serving the stream after the current batch. true cuts it: the scheduler is lost.
STOP = 11
# Response to REQUEST_OUTPUT_BUFFER: the request's number, and a place in a segment or null. A
# segment that the worker keeps has its state in the last byte (nereid.shm.segments).
OUTPUT_BUFFER = 12
# Response to REQUEST_LINK: a link's metadata, and the domain of processes that share memory. null
# means that calls go through the executor.
LINK = 13

# Frames to the executor:

STARTED = 20
# Responses to INITIALIZE (whether the model has is_ready()), to DESCRIBE (the configuration), and
# to either after a failure (an exception's text).
INITIALIZED = 21
DESCRIBED = 22
FAILED = 23
RESPONSES = 24
LOG = 25
METRIC = 26
CALL = 27
# Response to READINESS_QUERY: the number and null before is_ready() is called, then the number and
# its result.
READY = 28
FINALIZED = 29
# The stream has ended. null: no error. A list: an error's status and message. A text: why the
# worker could not serve the stream.
SERVED = 30
# The request's number, the bytes of the outputs, and whether the worker keeps the segment.
REQUEST_OUTPUT_BUFFER = 31
# Times of a batch, for the traces of its members.
TRACED = 32
# A batch's request ids and its Executed message. Sent before SERVED if the stream was lost.
KEPT = 33
# Names of segments that the worker does not keep any more.
RETURN_OUTPUT_BUFFERS = 34
REQUEST_LINK = 35

# Frames that may be as large as tensors are.
WITH_TENSORS = frozenset((BATCH, CALL_RESPONSE, RESPONSES, CALL, KEPT))

_LONG = Struct("<Q")
_RANGE = Struct("<QQ")

# The maximum in bytes is the same as for a protobuf message.
MAX_FRAME = (1 << 31) - 1
# This bit marks the size of a tensor in a segment. The frame has its place, not its bytes.
_IN_SEGMENT = 1 << 63
# The index is the item's size modulo eight.
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
# Exceptions that the reading functions may hit in a malformed body.
_MALFORMED = (ValueError, IndexError, OverflowError, struct.error)

# Flag of a RESPONSES frame: execute() has returned.
EXECUTED = 1
# Flags of a reply. MORE: another reply will follow. ERROR: the reply is an error. EMPTY: the reply
# is only the final flag. RESCHEDULED: the model wants the request again, so there is no response.
MORE = 1
ERROR = 2
EMPTY = 4
RESCHEDULED = 8


class WireError(Exception):
    """Raised for a malformed frame, or for a frame that is too large to be sent."""


class LostError(Exception):
    """Raised when the other end has closed the socket."""


class SlowError(Exception):
    """Raised when the other end of the socket takes too long."""


class Range(NamedTuple):
    """A tensor's place in a segment."""

    segment: str
    offset: int
    size: int


class Member(NamedTuple):
    """A request in a BATCH frame: the number of its spec, its metadata as JSON, and its tensors."""

    spec: int
    remaining_us: int
    meta: bytes
    tensors: Sequence[Any]


class Reply(NamedTuple):
    """A response in a RESPONSES frame: its member, flags, metadata as JSON, and tensors."""

    member: int
    flags: int
    meta: bytes
    tensors: Sequence[Any]


class Call(NamedTuple):
    """A call to the mesh, or a response: number, flags of a reply, JSON metadata, tensors."""

    number: int
    flags: int
    meta: bytes
    tensors: Sequence[Any]


def batch_parts(number: int, members: Iterable[_Row]) -> list[Any]:
    """Return the body of a BATCH frame, in parts."""
    return _rows_parts([0, number], members)


def read_batch(body: Any) -> tuple[int, list[Member]]:
    """Return the batch's number and members; raise WireError for a malformed body."""
    (number,), members = _read_rows(body, 1)
    return number, [*map(Member._make, members)]


def responses_parts(number: int, flags: int, replies: Iterable[_Row]) -> list[Any]:
    """Return the body of a RESPONSES frame, in parts."""
    return _rows_parts([0, number, flags], replies)


def read_responses(body: Any) -> tuple[int, int, list[Reply]]:
    """Return the batch's number, flags, and replies; raise WireError for a malformed body."""
    (number, flags), replies = _read_rows(body, 2)
    return number, flags, [*map(Reply._make, replies)]


def call_parts(call: Call) -> list[Any]:
    """Return the body of a CALL or CALL_RESPONSE frame, in parts."""
    number, flags, meta, tensors = call
    numbers = [0, number, flags, len(meta)]
    parts: list[Any] = [b""]
    _append_tensors(numbers, parts, meta, tensors)
    return _finish(numbers, parts)


def read_call(body: Any) -> Call:
    """Return the call or response in a frame; raise WireError for a malformed body."""
    view, numbers, at = _table(body)
    try:
        number, flags, meta_size = numbers[1:4]
        meta, tensors, at = _read_tensors(view, at, meta_size, numbers[4:])
    except _MALFORMED as error:
        raise WireError("malformed call") from error
    _check_end(view, at, numbers, len(numbers))
    return Call(number, flags, meta, tensors)


def kept_parts(ids: Sequence[int], reply: bytes) -> list[Any]:
    """Return the body of a KEPT frame, in parts."""
    return [array("Q", [len(ids), *ids]).tobytes(), reply]


def read_kept(body: Any) -> tuple[list[int], bytes]:
    """Return the ids and the message in a KEPT frame; raise WireError for a malformed body."""
    view = memoryview(body)
    try:
        end = _LONG.size * (1 + _LONG.unpack_from(view)[0])
        if end > len(view):
            raise WireError("a frame ends too early")
        return view[_LONG.size : end].cast("Q").tolist(), bytes(view[end:])
    except _MALFORMED as error:
        raise WireError("malformed frame of kept responses") from error


def size_of(tensor: Any) -> int:
    """Return the size in bytes of an object with the buffer protocol."""
    kind = type(tensor)
    size: int = len(tensor) if kind is bytes or kind is bytearray else tensor.nbytes
    return size


def as_bytes(tensor: Any) -> memoryview:
    """Return a view of the same memory as bytes, which can be sliced."""
    return memoryview(tensor).cast("B")


# A whole table is packed in one call. A call for each field would take longer than all the rest.


def _rows_parts(numbers: list[int], rows: Iterable[_Row]) -> list[Any]:
    parts: list[Any] = [b""]
    for first, second, meta, tensors in rows:
        numbers += (first, second, len(meta), len(tensors))
        _append_tensors(numbers, parts, meta, tensors)
    return _finish(numbers, parts)


def _read_rows(body: Any, count: int) -> tuple[list[int], list[_Row]]:
    view, numbers, at = _table(body)
    place = 1 + count
    rows: list[_Row] = []
    try:
        while place < len(numbers):
            first, second, meta_size, tensor_count = numbers[place : place + 4]
            place += 4 + tensor_count
            sizes = numbers[place - tensor_count : place]
            meta, tensors, at = _read_tensors(view, at, meta_size, sizes)
            rows.append((first, second, meta, tensors))
    except _MALFORMED as error:
        raise WireError("malformed frame of requests or responses") from error
    _check_end(view, at, numbers, place)
    return numbers[1 : 1 + count], rows


def _append_tensors(
    numbers: list[int], parts: list[Any], meta: bytes, tensors: Iterable[Any]
) -> None:
    if meta:
        parts.append(meta)
        if len(meta) & 7:
            parts.append(_PADDING[len(meta) & 7])
    for tensor in tensors:
        data = tensor
        if type(tensor) is Range:
            data = tensor.segment.encode()
            numbers.append(tensor.size | _IN_SEGMENT)
            parts.append(_RANGE.pack(tensor.offset, len(data)))
            size = len(data)
        else:
            size = size_of(tensor)
            numbers.append(size)
        parts.append(data)
        if size & 7:
            parts.append(_PADDING[size & 7])


def _finish(numbers: list[int], parts: list[Any]) -> list[Any]:
    numbers[0] = len(numbers)
    parts[0] = array("Q", numbers).tobytes()
    return parts


def _table(body: Any) -> tuple[memoryview, list[int], int]:
    view = memoryview(body)
    if len(view) < _LONG.size:
        raise WireError("a frame ends too early")
    end = _LONG.unpack_from(view)[0] * _LONG.size
    if not _LONG.size < end <= len(view):
        raise WireError("a frame ends too early")
    return view, view[:end].cast("Q").tolist(), end


def _read_tensors(
    view: memoryview, at: int, meta_size: int, sizes: list[int]
) -> tuple[bytes, list[Any], int]:
    meta = b""
    if meta_size:
        meta = bytes(view[at : at + meta_size])
        at += meta_size + (-meta_size & 7)
    tensors: list[Any] = []
    for size in sizes:
        if size < _IN_SEGMENT:
            tensors.append(view[at : at + size])
            at += size + (-size & 7)
        else:
            offset, length = _RANGE.unpack_from(view, at)
            at += _RANGE.size
            tensors.append(Range(str(view[at : at + length], "utf-8"), offset, size - _IN_SEGMENT))
            at += length + (-length & 7)
    return meta, tensors, at


def _check_end(view: memoryview, at: int, numbers: list[int], place: int) -> None:
    """Check that the data ends where the body ends; a slice past the end raises no error."""
    if at != len(view) or place != len(numbers):
        raise WireError("a frame is longer or shorter than its table says")
