"""What an executor and a worker say to each other over the socket between them; both use this.

A frame is its body's length, its kind, and the body. Bodies are JSON, but for BATCH and ANSWERS,
which carry tensors: these are made of numbers and of fields, padded so that each begins at a
multiple of eight bytes. What is read is checked: nobody's mistake makes a reader run astray.
"""

from __future__ import annotations

import select
import threading
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

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
CALL_ANSWER = 7
# Ask the model's is_ready().
ASK_READY = 8
FINALIZE = 9

# ---- to the executor

# Alive, before anything is loaded.
STARTED = 20
# The answers to INITIALIZE and DESCRIBE; FAILED: an exception's text.
INITIALIZED = 21
DESCRIBED = 22
FAILED = 23
ANSWERS = 24
LOG = 25
METRIC = 26
# The model wants something of the mesh.
CALL = 27
READY = 28
FINALIZED = 29

_HEAD = Struct("<II")
_PAIR = Struct("<II")
_LONG = Struct("<Q")
_BATCH_HEAD = Struct("<QI4x")
_MEMBER_HEAD = Struct("<IIQ")
_ANSWERS_HEAD = Struct("<QII")
_ANSWER_HEAD = Struct("<II")
_RANGE = Struct("<QQ")
_CALL_HEAD = Struct("<QII")

# As large as a protobuf message can be.
LARGEST_FRAME = (1 << 31) - 1
# What a frame of tensors holds in place of one that lies in a segment.
_ELSEWHERE = 1 << 63
_READ_BYTES = 1 << 18
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
_MOST_PARTS = 512

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


class Fields:
    """Reads a body from its beginning to its end."""

    def __init__(self, body: Any) -> None:
        self._view = memoryview(body)
        self._at = 0

    def numbers(self, form: Struct) -> Any:
        end = self._at + form.size
        if end > len(self._view):
            raise WireError("a frame ends too early")
        numbers = form.unpack_from(self._view, self._at)
        self._at = end
        return numbers

    def data(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._view):
            raise WireError("a frame ends too early")
        data = self._view[self._at : end]
        self._at = end + (-size & 7)
        return data

    def tensors(self, count: int) -> list[Any]:
        """As many tensors: views of the body, or ranges of segments."""
        tensors: list[Any] = []
        for _ in range(count):
            (size,) = self.numbers(_LONG)
            if size & _ELSEWHERE:
                offset, name_size = self.numbers(_RANGE)
                name = _text(self.data(name_size))
                tensors.append(Range(name, offset, size & ~_ELSEWHERE))
            else:
                tensors.append(self.data(size))
        return tensors

    def end(self) -> None:
        if self._at < len(self._view):
            raise WireError("a frame goes on after its end")


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError("a name is no text") from error


def _padded(parts: list[Any], data: Any) -> None:
    parts.append(data)
    padding = -len(data) & 7
    if padding:
        parts.append(_PADDING[-padding & 7])


def _add_tensors(parts: list[Any], tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if type(tensor) is Range:
            name = tensor.segment.encode()
            parts.append(_LONG.pack(tensor.size | _ELSEWHERE))
            parts.append(_RANGE.pack(tensor.offset, len(name)))
            _padded(parts, name)
        else:
            parts.append(_LONG.pack(len(tensor)))
            _padded(parts, tensor)


def batch_parts(number: int, members: Sequence[Member]) -> list[Any]:
    """The body of a BATCH frame, in parts."""
    parts: list[Any] = [_BATCH_HEAD.pack(number, len(members))]
    for form, meta, remaining_us, tensors in members:
        parts.append(_MEMBER_HEAD.pack(form, len(meta), remaining_us))
        if meta:
            _padded(parts, meta)
        parts.append(_LONG.pack(len(tensors)))
        _add_tensors(parts, tensors)
    return parts


def read_batch(body: Any) -> tuple[int, list[Member]]:
    """The batch's number and members; raises WireError."""
    fields = Fields(body)
    number, count = fields.numbers(_BATCH_HEAD)
    members = []
    for _ in range(count):
        form, meta_size, remaining_us = fields.numbers(_MEMBER_HEAD)
        meta = bytes(fields.data(meta_size))
        (tensors,) = fields.numbers(_LONG)
        members.append(Member(form, meta, remaining_us, fields.tensors(tensors)))
    fields.end()
    return number, members


def answers_parts(number: int, flags: int, replies: Sequence[Reply]) -> list[Any]:
    """The body of an ANSWERS frame, in parts."""
    parts: list[Any] = [_ANSWERS_HEAD.pack(number, flags, len(replies))]
    for member, reply_flags, meta, tensors in replies:
        parts.append(_ANSWER_HEAD.pack(member, reply_flags))
        parts.append(_PAIR.pack(len(meta), len(tensors)))
        _padded(parts, meta)
        _add_tensors(parts, tensors)
    return parts


def read_answers(body: Any) -> tuple[int, int, list[Reply]]:
    """The batch's number, the frame's flags, and the answers; raises WireError."""
    fields = Fields(body)
    number, flags, count = fields.numbers(_ANSWERS_HEAD)
    replies = []
    for _ in range(count):
        member, reply_flags = fields.numbers(_ANSWER_HEAD)
        meta_size, tensors = fields.numbers(_PAIR)
        meta = bytes(fields.data(meta_size))
        replies.append(Reply(member, reply_flags, meta, fields.tensors(tensors)))
    fields.end()
    return number, flags, replies


def call_parts(call: Call) -> list[Any]:
    """The body of a CALL or CALL_ANSWER frame, in parts."""
    number, flags, meta, tensors = call
    parts: list[Any] = [_CALL_HEAD.pack(number, flags, len(meta)), _LONG.pack(len(tensors))]
    _padded(parts, meta)
    _add_tensors(parts, tensors)
    return parts


def read_call(body: Any) -> Call:
    """What a CALL or CALL_ANSWER frame holds; raises WireError."""
    fields = Fields(body)
    number, flags, meta_size = fields.numbers(_CALL_HEAD)
    (count,) = fields.numbers(_LONG)
    meta = bytes(fields.data(meta_size))
    call = Call(number, flags, meta, fields.tensors(count))
    fields.end()
    return call


class Channel:
    """One end of the socket: any thread may send, one thread at a time may receive."""

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket
        socket.setblocking(False)
        self._sending = threading.Lock()
        self._readable = select.poll()
        self._readable.register(socket, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(socket, select.POLLOUT)
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: int, parts: Sequence[Any], limit_s: float | None = None) -> None:
        """Write a frame whole.

        Raises:
            LostError: nobody is there to read it.
            SlowError: limit_s passed without a byte being taken.
        """
        size = sum(map(len, parts))
        if size > LARGEST_FRAME:
            raise WireError("the tensors are too large to be sent")
        views = [_HEAD.pack(size, kind), *parts]
        if size < _READ_BYTES or len(views) > _MOST_PARTS:
            # One small copy costs less than a long list of places.
            views = [b"".join(views)]
        with self._sending:
            self._send(views, limit_s)

    def _send(self, views: list[Any], limit_s: float | None) -> None:
        wait_ms = None if limit_s is None else int(limit_s * 1000)
        while views:
            try:
                sent = self._socket.sendmsg(views)
            except BlockingIOError:
                if not self._writable.poll(wait_ms):
                    raise SlowError from None
                continue
            except OSError as error:
                raise LostError from error
            while views and sent >= len(views[0]):
                sent -= len(views[0])
                del views[0]
            if sent:
                views[0] = memoryview(views[0])[sent:]

    def receive(self, until: float | None = None) -> tuple[int, bytearray]:
        """The next frame's kind and body, which is the caller's own; waits for it.

        Raises:
            LostError: the other end closed.
            SlowError: it was not there at `until` (time.monotonic).
            WireError: what came is no frame.
        """
        while True:
            frame = self.take()
            if frame is not None:
                return frame
            self._wait(until)

    def take(self) -> tuple[int, bytearray] | None:
        """The next frame if one is there; else as receive."""
        if self._end - self._start < _HEAD.size and not self._fill():
            return None
        if self._end - self._start < _HEAD.size:
            return None
        size, kind = _HEAD.unpack_from(self._buffer, self._start)
        if size > LARGEST_FRAME:
            raise WireError("a frame is too large")
        begin = self._start + _HEAD.size
        if begin + size <= self._end:
            body = self._buffer[begin : begin + size]
            self._start = begin + size
            return kind, body
        if begin + size <= len(self._buffer):
            # It fits, once the rest is here.
            return self.take() if self._fill() else None
        self._start = begin
        return kind, self._large(size)

    def _large(self, size: int) -> bytearray:
        """The body of a frame that the buffer does not hold; waits for all of it."""
        body = bytearray(size)
        view = memoryview(body)
        have = min(self._end - self._start, size)
        view[:have] = self._view[self._start : self._start + have]
        self._start += have
        while have < size:
            count = self._read(view[have:])
            if count:
                have += count
            else:
                self._wait(None)
        return body

    def _fill(self) -> bool:
        """Read more of what is there into the buffer; whether there was anything."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        count = self._read(self._view[self._end :])
        self._end += count
        return count > 0

    def _read(self, into: memoryview) -> int:
        try:
            count = self._socket.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LostError from error
        if not count:
            raise LostError
        return count

    def _wait(self, until: float | None) -> None:
        left_s = None if until is None else until - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise SlowError
        if not self._readable.poll(None if left_s is None else left_s * 1000 + 1):
            raise SlowError
