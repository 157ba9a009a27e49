"""What an executor and a worker say to each other over the socket between them; both use this.

A frame is of a kind and has a body (see channel). Bodies are JSON, but for BATCH and ANSWERS,
which carry tensors: these begin with a table of 64-bit numbers, and what the numbers are sizes of
follows, each padded to a multiple of eight bytes. What is read is checked: nobody's mistake makes a
reader run astray.
"""

from __future__ import annotations

import struct
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    _MemberLike = tuple[int, bytes, int, Sequence[Any]]
    _ReplyLike = tuple[int, int, bytes, Sequence[Any]]

# ---- to the worker

# What to load: args (of initialize), module and paths, and how large tensors may be inline.
INITIALIZE = 1
# As INITIALIZE, but auto_complete_config is asked, and nothing else.
DESCRIBE = 2
# A form's number, and what requests of this form ask: their tensors and outputs.
FORM = 3
BATCH = 4
# What has become of a request under way.
CONTROL = 5
# An answer to a CALL.
CALL_RESPONSE = 7
# Ask the model's is_ready(): a number for the question.
READINESS_QUERY = 8
FINALIZE = 9
# Serve the instance's stream from now on: what is needed for that. STOP: no longer.
SERVE = 10
STOP = 11
# The answer to an ASK_ROOM: a segment and its size; null: there is none.
ROOM = 12

# ---- to the executor

# Alive, before anything is loaded.
STARTED = 20
# The answers to INITIALIZE (whether the model has is_ready) and DESCRIBE; FAILED: an exception's
# text.
INITIALIZED = 21
DESCRIBED = 22
FAILED = 23
RESPONSES = 24
LOG = 25
METRIC = 26
# The model wants something of the mesh.
CALL = 27
# The question's number, and what is_ready() said.
READY = 28
FINALIZED = 29
# The stream is at its end: null if in good order, else a status and a text; or why it cannot be
# served.
SERVED = 30
# How much room an answer's outputs need.
ASK_ROOM = 31
# When what of a batch was done, for the traces of its members.
TRACED = 32

_LONG = Struct("<Q")
_RANGE = Struct("<QQ")

# As large as a protobuf message can be.
LARGEST_FRAME = (1 << 31) - 1
# What a frame of tensors holds in place of one that lies in a segment.
_ELSEWHERE = 1 << 63
# By what a size leaves over eight.
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
# What comes of unpacking numbers that are not there, or are no sizes, or of a name that is no text.
_MISFITS = (ValueError, IndexError, OverflowError, struct.error)

# Of an ANSWERS frame: execute() has returned.
FREE = 1
# Of an answer: there will be another to its request; it is an error; it has no response in it.
MORE = 1
ERROR = 2
EMPTY = 4


class WireError(Exception):
    """What came is no frame that makes sense."""


class LostError(Exception):
    """The other end is gone."""


class SlowError(Exception):
    """The other end took too long."""


class Range(NamedTuple):
    """A tensor's place in a segment."""

    segment: str
    offset: int
    size: int


class Member(NamedTuple):
    """A request as it travels: which form it has, what JSON says of it, and its tensors."""

    form: int
    meta: bytes
    remaining_us: int
    tensors: Sequence[Any]


class Reply(NamedTuple):
    """An answer as it travels: whose it is, its flags, what JSON says of it, and its tensors."""

    member: int
    flags: int
    meta: bytes
    tensors: Sequence[Any]


class Call(NamedTuple):
    """Something asked of the mesh, or an answer to it: the asker's number for it, flags as a
    reply has, what JSON says of it, and tensors.
    """

    number: int
    flags: int
    meta: bytes
    tensors: Sequence[Any]


def batch_parts(number: int, members: Iterable[_MemberLike]) -> list[Any]:
    """The body of a BATCH frame, in parts."""
    numbers = [0, number]
    parts: list[Any] = [b""]
    for form, meta, remaining_us, tensors in members:
        numbers += (form, remaining_us, len(meta), len(tensors))
        _put(numbers, parts, meta, tensors)
    return _body(numbers, parts)


def read_batch(body: Any) -> tuple[int, list[Member]]:
    """The batch's number and members; raises WireError."""
    view, numbers, at = _table(body)
    try:
        number, place, members = numbers[1], 2, []
        while place < len(numbers):
            form, remaining_us, meta_size, count = numbers[place : place + 4]
            place += 4 + count
            meta, tensors, at = _get(view, at, meta_size, numbers[place - count : place])
            members.append(Member(form, meta, remaining_us, tensors))
    except _MISFITS as error:
        raise WireError("a frame of requests makes no sense") from error
    _check_end(view, at, numbers, place)
    return number, members


def responses_parts(number: int, flags: int, replies: Iterable[_ReplyLike]) -> list[Any]:
    """The body of an ANSWERS frame, in parts."""
    numbers = [0, number, flags]
    parts: list[Any] = [b""]
    for member, reply_flags, meta, tensors in replies:
        numbers += (member, reply_flags, len(meta), len(tensors))
        _put(numbers, parts, meta, tensors)
    return _body(numbers, parts)


def read_responses(body: Any) -> tuple[int, int, list[Reply]]:
    """The batch's number, the frame's flags, and the answers; raises WireError."""
    view, numbers, at = _table(body)
    try:
        (number, flags), place, replies = numbers[1:3], 3, []
        while place < len(numbers):
            member, reply_flags, meta_size, count = numbers[place : place + 4]
            place += 4 + count
            meta, tensors, at = _get(view, at, meta_size, numbers[place - count : place])
            replies.append(Reply(member, reply_flags, meta, tensors))
    except _MISFITS as error:
        raise WireError("a frame of answers makes no sense") from error
    _check_end(view, at, numbers, place)
    return number, flags, replies


def call_parts(call: Call) -> list[Any]:
    """The body of a CALL or CALL_ANSWER frame, in parts."""
    number, flags, meta, tensors = call
    numbers = [0, number, flags, len(meta)]
    parts: list[Any] = [b""]
    _put(numbers, parts, meta, tensors)
    return _body(numbers, parts)


def read_call(body: Any) -> Call:
    """What a CALL or CALL_ANSWER frame holds; raises WireError."""
    view, numbers, at = _table(body)
    try:
        number, flags, meta_size = numbers[1:4]
        meta, tensors, at = _get(view, at, meta_size, numbers[4:])
    except _MISFITS as error:
        raise WireError("a call makes no sense") from error
    _check_end(view, at, numbers, len(numbers))
    return Call(number, flags, meta, tensors)


def size_of(tensor: Any) -> int:
    """How many bytes an object of the buffer protocol has."""
    kind = type(tensor)
    size: int = len(tensor) if kind is bytes or kind is bytearray else tensor.nbytes
    return size


def as_bytes(tensor: Any) -> memoryview:
    """The same memory as something that can be cut into pieces."""
    return memoryview(tensor).cast("B")


# One pass over plain numbers in the table, and one over the data: a call for each field costs more
# than all else.


def _put(numbers: list[int], parts: list[Any], meta: bytes, tensors: Iterable[Any]) -> None:
    if meta:
        parts.append(meta)
        if len(meta) & 7:
            parts.append(_PADDING[len(meta) & 7])
    for tensor in tensors:
        data = tensor
        if type(tensor) is Range:
            data = tensor.segment.encode()
            numbers.append(tensor.size | _ELSEWHERE)
            parts.append(_RANGE.pack(tensor.offset, len(data)))
            size = len(data)
        else:
            size = size_of(tensor)
            numbers.append(size)
        parts.append(data)
        if size & 7:
            parts.append(_PADDING[size & 7])


def _body(numbers: list[int], parts: list[Any]) -> list[Any]:
    numbers[0] = len(numbers)
    parts[0] = array("Q", numbers).tobytes()
    return parts


def _table(body: Any) -> tuple[memoryview, list[int], int]:
    """The numbers that a body begins with, and where they end."""
    view = memoryview(body)
    if len(view) < _LONG.size:
        raise WireError("a frame ends too early")
    end = _LONG.unpack_from(view)[0] * _LONG.size
    if not _LONG.size < end <= len(view):
        raise WireError("a frame ends too early")
    return view, view[:end].cast("Q").tolist(), end


def _get(
    view: memoryview, at: int, meta_size: int, sizes: list[int]
) -> tuple[bytes, list[Any], int]:
    """A meta and its tensors, views of the body or ranges of segments; and where they end."""
    meta = b""
    if meta_size:
        meta = bytes(view[at : at + meta_size])
        at += meta_size + (-meta_size & 7)
    tensors: list[Any] = []
    for size in sizes:
        if size < _ELSEWHERE:
            tensors.append(view[at : at + size])
            at += size + (-size & 7)
        else:
            offset, length = _RANGE.unpack_from(view, at)
            at += _RANGE.size
            tensors.append(Range(str(view[at : at + length], "utf-8"), offset, size - _ELSEWHERE))
            at += length + (-length & 7)
    return meta, tensors, at


def _check_end(view: memoryview, at: int, numbers: list[int], place: int) -> None:
    """What lies past an end was read as something shorter."""
    if at != len(view) or place != len(numbers):
        raise WireError("a frame is longer or shorter than it says")
