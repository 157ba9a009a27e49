"""The socket between an executor and a worker: frames in, frames out; both use this.

A frame is its body's length, its kind, and the body. Knows nothing of what is in it.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any

from .wire import LARGEST_FRAME, LostError, SlowError, WireError, as_bytes, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = Struct("<II")
_READ_BYTES = 1 << 18
_MOST_PARTS = 512
_AT_ONCE = socket.MSG_DONTWAIT


# This process was forked from the one that the channels belong to.
_forked = False


def is_forked() -> bool:
    return _forked


def _note_fork() -> None:
    global _forked  # noqa: PLW0603 - a process is or is not
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


class Channel:
    """One end of the socket: any thread may send, one thread at a time may receive."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        # A reader that has nothing else to wait for waits in recv, which is one call instead of
        # three.
        connection.setblocking(True)
        self._sending = threading.Lock()
        self._later: deque[bytes] = deque()
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)
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
        if _forked:
            # Two processes at one socket would tear each other's frames apart.
            raise LostError
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else size_of(part)
        if size > LARGEST_FRAME:
            raise WireError("the tensors are too large to be sent")
        head = _HEAD.pack(size, kind)
        if size < _READ_BYTES or len(parts) >= _MOST_PARTS:
            # One small copy costs less than a long list of places.
            views: list[Any] = [b"".join((head, *parts))]
        else:
            views = [head, *map(as_bytes, parts)]
        with self._sending:
            self._send(views, limit_s)
        if self._later:
            self._send_later()

    def send_at_leisure(self, kind: int, parts: Sequence[Any]) -> None:
        """As send, for finalisers, which may run in the midst of a send of the same thread."""
        if _forked:
            return
        body = b"".join(parts)
        self._later.append(_HEAD.pack(len(body), kind) + body)
        self._send_later()

    def _send_later(self) -> None:
        # Whoever has the lock looks here when it has let go of it.
        while self._later and self._sending.acquire(blocking=False):
            try:
                self._send([self._later.popleft()], None)
            except IndexError:
                pass
            finally:
                self._sending.release()

    def _send(self, views: list[Any], limit_s: float | None) -> None:
        wait_ms = None if limit_s is None else int(limit_s * 1000)
        while views:
            try:
                sent = self._socket.sendmsg(views, (), _AT_ONCE)
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
        while (frame := self.held()) is None:
            if until is not None:
                self._wait(until)
            self.fill(0)
        return frame

    def take(self) -> tuple[int, bytearray] | None:
        """The next frame if one is there; else as receive."""
        while (frame := self.held()) is None:
            if not self.fill():
                return None
        return frame

    def held(self) -> tuple[int, bytearray] | None:
        """The next frame, if it was read already; else as receive."""
        begin = self._start + _HEAD.size
        if begin > self._end:
            return None
        size, kind = _HEAD.unpack_from(self._buffer, self._start)
        if size > LARGEST_FRAME:
            raise WireError("a frame is too large")
        end = begin + size
        if end <= self._end:
            self._start = end
            return kind, self._buffer[begin:end]
        if _HEAD.size + size <= _READ_BYTES:
            return None
        self._start = begin
        return kind, self._large(size)

    def fill(self, flags: int = _AT_ONCE) -> bool:
        """Read what is there, by one call; whether there was anything. Call when held() has none.

        flags: 0 to wait for something.
        """
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        count = self._read(self._view[self._end :] if self._end else self._view, flags)
        self._end += count
        return count > 0

    def _large(self, size: int) -> bytearray:
        """The body of a frame that the buffer does not hold; waits for all of it."""
        body = bytearray(size)
        view = memoryview(body)
        have = min(self._end - self._start, size)
        view[:have] = self._view[self._start : self._start + have]
        self._start += have
        while have < size:
            have += self._read(view[have:], 0)
        return body

    def _read(self, into: memoryview, flags: int) -> int:
        try:
            count = self._socket.recv_into(into, 0, flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LostError from error
        if not count:
            raise LostError
        return count

    def _wait(self, until: float) -> None:
        left_s = until - time.monotonic()
        if left_s <= 0 or not self._readable.poll(left_s * 1000 + 1):
            raise SlowError
