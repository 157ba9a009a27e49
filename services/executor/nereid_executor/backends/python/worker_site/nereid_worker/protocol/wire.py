"""The frames that an executor and a worker send each other over the socket between them.

A frame has a kind and a body (see channel). Bodies are JSON, but for BATCH, RESPONSES, CALL and
CALL_RESPONSE, which carry tensors: they begin with a table of 64-bit numbers, followed by the data
whose sizes the table lists, each padded to a multiple of eight bytes. Everything is checked when it
is read: a model's own code runs in the worker and may write to the socket.
"""

from __future__ import annotations

import struct
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    # A Member or a Reply.
    _Row = tuple[int, int, bytes, Sequence[Any]]

# ---- to the worker

# What to load: arguments of initialize, paths, and how much memory requests may share.
INITIALIZE = 1
# As INITIALIZE, but only auto_complete_config is called.
DESCRIBE = 2
# A form's number, and its JSON: the inputs and outputs of requests that refer to it.
FORM = 3
BATCH = 4
# A request in flight was cancelled, or its client cannot keep up, or can again.
CONTROL = 5
CALL_RESPONSE = 7
# Call the model's is_ready(): the query's number.
READINESS_QUERY = 8
FINALIZE = 9
# Serve the instance's stream: where it is and how to identify. STOP: end after the current batch.
SERVE = 10
# Whether to cut the stream, as the scheduler is lost.
STOP = 11
# In response to REQUEST_OUTPUT_BUFFER: its number, and a place in a segment; null: there is none.
# The last byte of a segment that the worker keeps is one of nereid.shm.segments' states.
OUTPUT_BUFFER = 12
# In response to REQUEST_LINK: the metadata of a link to the scheduler, and the domain of the memory
# that this host's processes share; null: calls go through the executor.
LINK = 13

# ---- to the executor

# Alive, before anything is loaded.
STARTED = 20
# In response to INITIALIZE (whether the model has is_ready) and DESCRIBE; FAILED: an exception's
# text.
INITIALIZED = 21
DESCRIBED = 22
FAILED = 23
RESPONSES = 24
LOG = 25
METRIC = 26
# The model asks something of the mesh.
CALL = 27
# The query's number, and what is_ready() returned; null: it is being called.
READY = 28
FINALIZED = 29
# The stream ended: null if in good order, else a status and a message; or a text, if it could not
# be served.
SERVED = 30
# The request's number, the size of outputs that need shared memory, and whether the worker keeps
# the segment for further outputs.
REQUEST_OUTPUT_BUFFER = 31
# Times of a batch, for the traces of its members.
TRACED = 32
# Before SERVED, if the stream was lost: the requests of a batch that has run, and its Executed
# message.
KEPT = 33
# Names of segments that the worker keeps no longer.
RETURN_OUTPUT_BUFFERS = 34
# The model makes calls, and the worker would have a link of its own to the scheduler for them.
REQUEST_LINK = 35

_LONG = Struct("<Q")
_RANGE = Struct("<QQ")

# As large as a protobuf message can be.
LARGEST_FRAME = (1 << 31) - 1
# Marks the size of a tensor that is in a segment: a reference stands in the frame instead.
_IN_SEGMENT = 1 << 63
# By size modulo eight.
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
# What reading a malformed body raises.
_MALFORMED = (ValueError, IndexError, OverflowError, struct.error)

# Flag of a RESPONSES frame: execute() has returned.
EXECUTED = 1
# Flags of a reply: another will follow; it is an error; it is empty (the final flag alone); the
# model wants the request again instead.
MORE = 1
ERROR = 2
EMPTY = 4
RESCHEDULED = 8


class WireError(Exception):
    """A malformed frame, or one too large to be sent."""


class LostError(Exception):
    """The other end closed the socket."""


class SlowError(Exception):
    """The other end took too long."""


class Range(NamedTuple):
    """A tensor's place in a segment."""

    segment: str
    offset: int
    size: int


class Member(NamedTuple):
    """A request in a BATCH frame: its form, its metadata as JSON, and its tensors."""

    form: int
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
    """A call to the mesh, or a response to one: the worker's number for the call, flags as a
    reply has, metadata as JSON, and tensors.
    """

    number: int
    flags: int
    meta: bytes
    tensors: Sequence[Any]


def batch_parts(number: int, members: Iterable[_Row]) -> list[Any]:
    """The body of a BATCH frame, in parts."""
    return _rows_parts([0, number], members)


def read_batch(body: Any) -> tuple[int, list[Member]]:
    """The batch's number and members; raises WireError."""
    (number,), members = _read_rows(body, 1)
    return number, [*map(Member._make, members)]


def responses_parts(number: int, flags: int, replies: Iterable[_Row]) -> list[Any]:
    """The body of a RESPONSES frame, in parts."""
    return _rows_parts([0, number, flags], replies)


def read_responses(body: Any) -> tuple[int, int, list[Reply]]:
    """The batch's number, the frame's flags, and the replies; raises WireError."""
    (number, flags), replies = _read_rows(body, 2)
    return number, flags, [*map(Reply._make, replies)]


def call_parts(call: Call) -> list[Any]:
    """The body of a CALL or CALL_RESPONSE frame, in parts."""
    number, flags, meta, tensors = call
    numbers = [0, number, flags, len(meta)]
    parts: list[Any] = [b""]
    _append_tensors(numbers, parts, meta, tensors)
    return _finish(numbers, parts)


def read_call(body: Any) -> Call:
    """The call or response in a CALL or CALL_RESPONSE frame; raises WireError."""
    view, numbers, at = _table(body)
    try:
        number, flags, meta_size = numbers[1:4]
        meta, tensors, at = _read_tensors(view, at, meta_size, numbers[4:])
    except _MALFORMED as error:
        raise WireError("malformed call") from error
    _check_end(view, at, numbers, len(numbers))
    return Call(number, flags, meta, tensors)


def kept_parts(ids: Sequence[int], reply: bytes) -> list[Any]:
    """The body of a KEPT frame, in parts."""
    return [array("Q", [len(ids), *ids]).tobytes(), reply]


def read_kept(body: Any) -> tuple[list[int], bytes]:
    """The ids and the message in a KEPT frame; raises WireError."""
    view = memoryview(body)
    try:
        end = _LONG.size * (1 + _LONG.unpack_from(view)[0])
        if end > len(view):
            raise WireError("a frame ends too early")
        return view[_LONG.size : end].cast("Q").tolist(), bytes(view[end:])
    except _MALFORMED as error:
        raise WireError("malformed frame of kept responses") from error


def size_of(tensor: Any) -> int:
    """The size in bytes of an object of the buffer protocol."""
    kind = type(tensor)
    size: int = len(tensor) if kind is bytes or kind is bytearray else tensor.nbytes
    return size


def as_bytes(tensor: Any) -> memoryview:
    """The same memory as a sliceable view of bytes."""
    return memoryview(tensor).cast("B")


# The table is packed and unpacked at once: a call for each field would cost more than all the rest.


def _rows_parts(numbers: list[int], rows: Iterable[_Row]) -> list[Any]:
    """The body of a frame of members or replies."""
    parts: list[Any] = [b""]
    for first, second, meta, tensors in rows:
        numbers += (first, second, len(meta), len(tensors))
        _append_tensors(numbers, parts, meta, tensors)
    return _finish(numbers, parts)


def _read_rows(body: Any, count: int) -> tuple[list[int], list[_Row]]:
    """The numbers before the rows, so many, and the rows; raises WireError."""
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
    """The table at the start of a body, and where it ends."""
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
    """Metadata and tensors (views of the body, or ranges of segments), and where they end."""
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
    """Slices past the end were silently cut short."""
    if at != len(view) or place != len(numbers):
        raise WireError("a frame is longer or shorter than its table says")
