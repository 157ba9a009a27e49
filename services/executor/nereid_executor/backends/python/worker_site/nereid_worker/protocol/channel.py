"""The socket between an executor and a worker; both ends use this module."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from .wire import MAX_FRAME, WITH_TENSORS, LostError, SlowError, WireError, as_bytes, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = Struct("<II")
_READ_BYTES = 1 << 18
_MAX_PARTS = 512
_MAX_AT_ONCE = 1 << 14
_NO_WAIT = socket.MSG_DONTWAIT

_forked = False


def is_forked() -> bool:
    """Return whether this process was forked from the process that owns the channels."""
    return _forked


def _on_fork() -> None:
    global _forked  # noqa: PLW0603 - a property of the process
    _forked = True


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_on_fork)


class Channel:
    """One end of the socket. Any thread may send; one thread at a time may receive."""

    def __init__(
        self,
        connection: socket.socket,
        max_bytes: int = MAX_FRAME,
        max_other_bytes: int = MAX_FRAME,
    ) -> None:
        """max_bytes: of a received frame with tensors; max_other_bytes: of any other.

        Smaller frames than the buffer always pass.
        """
        # A process that owns no channel may fork one that does.
        _watch_forks()
        self._socket = connection
        # The socket blocks: a reader that waits only for it needs one system call instead of three.
        connection.setblocking(True)
        self._max_bytes = max_bytes
        self._max_other_bytes = max_other_bytes
        self._send_lock = threading.Lock()
        self._deferred_frames: deque[bytes] = deque()
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def fileno(self) -> int:
        """Return the socket's descriptor, which is readable when frames have arrived."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end of the socket."""
        self._socket.close()

    def send(self, kind: int, parts: Sequence[Any], limit_s: float | None = None) -> None:
        """Write a whole frame.

        Raises LostError if the other end was closed or in a forked process, SlowError if the other
        end read nothing for limit_s seconds, WireError for a too large frame.
        """
        if _forked:
            # Two processes would interleave their frames on one socket.
            raise LostError
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else size_of(part)
        if size > MAX_FRAME:
            raise WireError("the tensors are too large to be sent")
        head = _HEAD.pack(size, kind)
        if size < _READ_BYTES or len(parts) >= _MAX_PARTS:
            # Copying a few bytes is cheaper than sending a long list of views.
            views: list[Any] = [b"".join((head, *parts))]
        else:
            views = [head, *map(as_bytes, parts)]
        with self._send_lock:
            self._send(views, limit_s)
        if self._deferred_frames:
            self._send_deferred()

    def try_send(self, kind: int, parts: Sequence[Any]) -> bool:
        """Write a small frame if that needs no waiting; return whether it was written."""
        body = b"".join(parts)
        if len(body) > _MAX_AT_ONCE or not self._send_lock.acquire(blocking=False):
            return False
        try:
            frame = _HEAD.pack(len(body), kind) + body
            sent = self._socket.send(frame, _NO_WAIT)
            if sent < len(frame):
                self._send([memoryview(frame)[sent:]], None)
        except OSError:
            return False
        finally:
            self._send_lock.release()
        if self._deferred_frames:
            self._send_deferred()
        return True

    def send_from_finalizer(self, kind: int, parts: Sequence[Any]) -> None:
        """Write a frame, or leave it to the thread that is sending another frame.

        Never waits for the lock: a finaliser may interrupt a send in the same thread.
        """
        if _forked:
            return
        body = b"".join(parts)
        self._deferred_frames.append(_HEAD.pack(len(body), kind) + body)
        self._send_deferred()

    def _send_deferred(self) -> None:
        # A call that holds the lock sends the deferred frames after it has released the lock.
        while self._deferred_frames and self._send_lock.acquire(blocking=False):
            try:
                self._send([self._deferred_frames.popleft()], None)
            except IndexError:
                pass
            finally:
                self._send_lock.release()

    def _send(self, views: list[Any], limit_s: float | None) -> None:
        wait_ms = None if limit_s is None else int(limit_s * 1000)
        while views:
            try:
                sent = self._socket.sendmsg(views, (), _NO_WAIT)
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

    def receive(self) -> tuple[int, bytearray]:
        """Wait for the next frame; return its kind and its body, which the caller may keep.

        Raises: LostError: the other end was closed. WireError: the frame is too large.
        """
        while (frame := self.buffered_frame()) is None:
            self.read_available(0)
        return frame

    def receive_nowait(self) -> tuple[int, bytearray] | None:
        """Return the next frame if it has arrived, else None. Errors are those of receive()."""
        while (frame := self.buffered_frame()) is None:
            if not self.read_available():
                return None
        return frame

    def buffered_frame(self) -> tuple[int, bytearray] | None:
        """Return the next frame if it is in the buffer, else None. Errors are those of receive().

        If the head of a frame larger than the buffer has arrived, wait for the rest of the frame.
        """
        begin = self._start + _HEAD.size
        if begin > self._end:
            return None
        size, kind = _HEAD.unpack_from(self._buffer, self._start)
        end = begin + size
        if end <= self._end:
            self._start = end
            return kind, self._buffer[begin:end]
        if _HEAD.size + size <= _READ_BYTES:
            return None
        if size > (self._max_bytes if kind in WITH_TENSORS else self._max_other_bytes):
            raise WireError("a frame is too large")
        self._start = begin
        return kind, self._receive_large(size)

    def read_available(self, flags: int = _NO_WAIT) -> bool:
        """Read into the buffer by one system call; return whether any bytes came.

        Call this when buffered_frame() returns None. With flags=0 the call waits for bytes.
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

    def _receive_large(self, size: int) -> bytearray:
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
