"""The frames that an executor and a worker send each other over the socket between them.

A frame has a kind and a body (see channel). Most bodies are JSON. The bodies of BATCH, RESPONSES,
CALL and CALL_RESPONSE frames carry tensors. Such a body begins with a table of 64-bit numbers,
which lists the sizes of the data items. The items follow, each padded to a multiple of eight bytes.
The readers check everything, because a model's own code runs in the worker and may write to the
socket.
"""

from __future__ import annotations

import struct
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    # Fields of a Member or a Reply.
    _Row = tuple[int, int, bytes, Sequence[Any]]

# ---- frames to the worker

# Load a model: arguments of initialize(), paths, and the shared memory for the model's requests.
INITIALIZE = 1
# Load a model like INITIALIZE, but call only auto_complete_config().
DESCRIBE = 2
# A form's number, and the form as JSON: the inputs and outputs of all requests that refer to the
# form.
FORM = 3
BATCH = 4
# Cancels a request in flight, pauses it because its client cannot keep up, or resumes it.
CONTROL = 5
CALL_RESPONSE = 7
# Call the model's is_ready(); the body is the query's number.
READINESS_QUERY = 8
FINALIZE = 9
# Serve the instance's stream: the scheduler's address, and metadata that identifies the instance.
SERVE = 10
# Stop serving the stream after the current batch; true cuts it, because the scheduler is lost.
STOP = 11
# Response to REQUEST_OUTPUT_BUFFER: the request's number, and a place in a segment, or null if
# there is no buffer. If the worker keeps the segment, the segment's last byte is its state (see
# nereid.shm.segments).
OUTPUT_BUFFER = 12
# Response to REQUEST_LINK: the metadata for a link to the scheduler, and the name of the domain in
# which processes share memory. null means that calls go through the executor.
LINK = 13

# ---- frames to the executor

# The worker runs, and has not loaded anything yet.
STARTED = 20
# INITIALIZED is the response to INITIALIZE, and says whether the model has is_ready(). DESCRIBED is
# the response to DESCRIBE, with the configuration. FAILED, with an exception's text, is the
# response to either of them after a failure.
INITIALIZED = 21
DESCRIBED = 22
FAILED = 23
RESPONSES = 24
LOG = 25
METRIC = 26
# A call that the model makes to the mesh.
CALL = 27
# Response to READINESS_QUERY: the query's number, and null before is_ready() is called; then the
# number again, and the result of is_ready().
READY = 28
FINALIZED = 29
# The stream has ended. null means that there was no error; a list is an error's status and message;
# a text says why the worker could not serve the stream.
SERVED = 30
# Request for shared memory for outputs: the request's number, the size of the outputs in bytes, and
# whether the worker keeps the segment for further outputs.
REQUEST_OUTPUT_BUFFER = 31
# Times of a batch, for the traces of the batch's members.
TRACED = 32
# The ids of a batch's requests and the Executed message with the responses. The frame is sent if
# the stream was lost, before SERVED.
KEPT = 33
# Names of segments that the worker does not keep any more.
RETURN_OUTPUT_BUFFERS = 34
# Request for the worker's own link to the scheduler, because the model makes calls.
REQUEST_LINK = 35

_LONG = Struct("<Q")
_RANGE = Struct("<QQ")

# Maximum size of a frame in bytes, the same as for a protobuf message.
MAX_FRAME = (1 << 31) - 1
# Bit that marks the size of a tensor in a segment. The frame then has the tensor's place instead of
# its bytes.
_IN_SEGMENT = 1 << 63
# Padding of an item; the index is the item's size modulo eight.
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
# Exceptions that the reading functions may hit in a malformed body.
_MALFORMED = (ValueError, IndexError, OverflowError, struct.error)

# Flag of a RESPONSES frame: execute() has returned.
EXECUTED = 1
# Flags of a reply. MORE: another reply will follow. ERROR: the reply is an error. EMPTY: the reply
# is only the final flag. RESCHEDULED: there is no response, because the model wants the request
# again.
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
    """A call to the mesh, or a response to one.

    The fields are the worker's number for the call, the flags of a reply, metadata as JSON, and
    tensors.
    """

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
    """Return the batch's number, the frame's flags, and the replies.

    Raises:
        WireError: the body is malformed.
    """
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
    """Return the call or response in a CALL or CALL_RESPONSE frame.

    Raises:
        WireError: the body is malformed.
    """
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


# The functions below pack and unpack a whole table in one call. A call for each field would take
# longer than all the rest.


def _rows_parts(numbers: list[int], rows: Iterable[_Row]) -> list[Any]:
    """Return the body of a BATCH or RESPONSES frame, in parts; a row is a member or a reply."""
    parts: list[Any] = [b""]
    for first, second, meta, tensors in rows:
        numbers += (first, second, len(meta), len(tensors))
        _append_tensors(numbers, parts, meta, tensors)
    return _finish(numbers, parts)


def _read_rows(body: Any, count: int) -> tuple[list[int], list[_Row]]:
    """Return the first `count` numbers, and the rows; raise WireError if the body is malformed."""
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
    """Return a view of a body, the table at its start, and the offset at which the table ends."""
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
    """Return metadata, tensors (views of the body, or places in segments), and the end's offset."""
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
