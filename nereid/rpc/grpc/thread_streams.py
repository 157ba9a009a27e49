"""Bidirectional streams between threads and handlers of the same process, without a socket.

A message costs one wake-up of the thread or of the loop. While the thread waits in receive(), the
loop may handle messages in the thread's place, which saves the wake-ups. The thread sends one reply
to each message, so few messages wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from nereid.rpc.grpc.call import CALL_SLOTS, Call
from nereid.rpc.grpc.handlers import routes_of
from nereid.rpc.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.rpc.grpc.handlers import Handlers, Route

    # Handles a message in the loop. Returns the reply, empty bytes for no reply, or `None` to leave
    # the message to the thread.
    StandIn = Callable[[bytes], bytes | None]


class ThreadStreams:
    """Source of streams to the handlers of one event loop. Create it inside that loop."""

    def __init__(self, handlers: Handlers) -> None:
        self._loop = asyncio.get_running_loop()
        self._routes = routes_of(handlers)
        self._calls: set[_ThreadCall] = set()
        self._closed = False

    def open(
        self,
        path: str,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        stand_in: StandIn | None = None,
    ) -> ThreadStream:
        """Open a stream from any thread; raise RpcError if the event loop has ended.

        The first use of a refused stream raises the error. The loop calls stand_in for a message if
        the thread waits and no other message is pending. stand_in may use the thread's objects,
        because the thread is blocked. receive() raises the exceptions of stand_in.
        """
        stream = ThreadStream(self._loop, stand_in)
        on_done = self._calls.discard
        call = _ThreadCall(path, tuple(metadata), stream, on_done)  # type: ignore[abstract]
        try:
            self._loop.call_soon_threadsafe(self._connect, stream, call)
        except RuntimeError as error:
            raise RpcError(Status.UNAVAILABLE, "the event loop has ended") from error
        return stream

    def close(self) -> None:
        """End all streams. Their threads get the error UNAVAILABLE."""
        self._closed = True
        for call in list(self._calls):
            call.cancel()
            call.stream.on_end(RpcError(Status.UNAVAILABLE, "the channel is closed"))

    def _connect(self, stream: ThreadStream, call: _ThreadCall) -> None:
        route: Route | None = self._routes.get(call.path)
        if self._closed:
            call.fail(Status.UNAVAILABLE, "the channel is closed")
        elif route is None or route.stream is None:
            call.fail(Status.UNIMPLEMENTED, f"unknown method {call.path}")
        else:
            self._calls.add(call)
            stream.connect(call)
            call.run_callback(route.stream, call)


class ThreadStream:
    """The thread's end of a stream. Other threads may only call cut()."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stand_in: StandIn | None) -> None:
        self._loop = loop
        self._stand_in = stand_in
        # `None` wakes the thread to check why the stream has ended.
        self._inbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._closed = False
        # The loop sets this before it puts `None` into the inbox.
        self._ended = False
        self._error: BaseException | None = None
        # The thread holds this lock except while it waits in receive(). The loop holds the lock
        # while the loop acts for the thread.
        self._at_work = threading.Lock()
        self._at_work.acquire()
        # Messages put into the inbox, and messages taken by the thread under `_at_work`. If the
        # numbers differ, a message is on its way.
        self._given = 0
        self._taken = 0
        self._call: _ThreadCall | None = None
        self._held: deque[bytes] = deque()

    def receive(self) -> bytes | None:
        """Block until the next message; return None after a regular end, close() or cut()."""
        if self._closed or (self._ended and self._inbox.empty()):
            self._raise_error()
            return None
        message = None
        self._at_work.release()
        try:
            message = self._inbox.get()
        finally:
            self._at_work.acquire()
            if message is not None:
                self._taken += 1
        if message is None or self._closed:
            self._raise_error()
            return None
        return message

    def send(self, message: bytes) -> None:
        """Pass a message to the handler. The reply may arrive before this method returns."""
        if self._closed:
            return
        if self._ended:
            raise self._error or RpcError(Status.UNAVAILABLE, "the stream has ended")
        try:
            self._loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError as error:
            raise RpcError(Status.UNAVAILABLE, "the event loop has ended") from error

    def close(self) -> None:
        """End the stream, like cut(): there is no socket to close."""
        self.cut()

    def cut(self) -> None:
        """End the stream from any thread; a blocked receive() returns None."""
        if self._closed:
            return
        self._closed = True
        self._inbox.put(None)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel_call)

    def _raise_error(self) -> None:
        if self._error is not None and not self._closed:
            raise self._error

    def connect(self, call: _ThreadCall) -> None:
        """Set the handler's end, which will be opened next."""
        self._call = call

    def on_message(self, message: bytes) -> None:
        """Pass a message of the handler to the loop's stand-in, or to the thread."""
        if self._held:
            self._held.append(message)
        elif (
            self._stand_in is not None and self._given == self._taken and not self._at_work.locked()
        ):
            # Handle the message in the next turn, so that send() returns before the reply arrives.
            self._held.append(message)
            self._loop.call_soon(self._handle_held)
        else:
            self._give(message)

    def on_end(self, error: BaseException | None) -> None:
        """End the stream because the handler or the loop ended it. The error is None for OK."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._held.clear()
            self._inbox.put(None)

    def _give(self, message: bytes) -> None:
        self._given += 1
        self._inbox.put(message)

    def _handle_held(self) -> None:
        if not self._held:
            return
        message = self._held.popleft()
        reply = None
        # Do not block: if close() has woken the thread, the thread holds the lock.
        if self._stand_in is not None and self._at_work.acquire(blocking=False):
            try:
                reply = self._stand_in(message)
            except BaseException as error:
                # receive() raises the error in the thread.
                self.on_end(error)
                self._cancel_call()
                return
            finally:
                self._at_work.release()
        if reply is None:
            self._give(message)
            while self._held:
                self._give(self._held.popleft())
            return
        if self._held:
            self._loop.call_soon(self._handle_held)
        if reply:
            self._deliver(reply)

    def _deliver(self, message: bytes) -> None:
        call = self._call
        if call is not None and call.on_message is not None:
            call.run_callback(call.on_message, message)

    def _cancel_call(self) -> None:
        self._held.clear()
        if self._call is not None:
            self._call.cancel()


class _ThreadCall(Call):
    __slots__ = (*CALL_SLOTS, "_on_done", "stream")

    def __init__(
        self,
        path: str,
        metadata: tuple[tuple[str, str | bytes], ...],
        stream: ThreadStream,
        on_done: Callable[[_ThreadCall], None],
    ) -> None:
        super().__init__(path, "local", metadata)
        self.stream = stream
        self._on_done = on_done

    @property
    def buffered_bytes(self) -> int:
        return 0

    def accept(self) -> None:
        """Do nothing: the thread does not wait until the stream is accepted."""

    def send(self, message: bytes) -> None:
        if not self.done:
            self.stream.on_message(message)

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        if not self.done:
            self.mark_done()
            self.stream.on_end(None if status == Status.OK else RpcError(status, message, trailers))

    def mark_done(self) -> None:
        super().mark_done()
        self._on_done(self)
