"""Blocking client: one connection with one bidirectional stream, which one thread owns.

The owner reads the socket. While the owner is busy, a background thread answers the peer's
keepalive pings. All streams of the process share this thread. A stopped process does not answer.
"""

# layout: compiled

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.client_connection import ClientConnection, ClientStream, request_block
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2.limits import Limits
from nereid.rpc.net.address import authority_of
from nereid.rpc.net.dialing import connect
from nereid.rpc.net.tls_files import REFUSED, reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.rpc.net.tls_files import Tls

_READ_BYTES: Final = 1 << 18
_BACKGROUND_READ_S: Final = 0.5
_CLOSE_S: Final = 1.0
_LIMITS: Final = Limits(trusts_peer=True)


def open_for_other_process(
    address: str,
    path: str,
    *,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    timeout_s: float,
) -> socket.socket:
    """Connect and open a stream that a BlockingStream of another process goes on with.

    Raises RpcError if the server is unreachable.
    """
    connection = ClientConnection(_LIMITS, wake=_nothing, on_stream_slot=_nothing)
    block = request_block(path, authority_of(address), metadata)
    connection.start(ClientStream(block, _ignore, _ignore))
    try:
        connected = connect(address, timeout_s)
        try:
            connected.sendall(b"".join(connection.http2.data_to_send()))
        except BaseException:
            connected.close()
            raise
    except OSError as error:
        raise _unreachable(address, error) from error
    return connected


def _unreachable(address: str, error: OSError) -> RpcError:
    return RpcError(Status.UNAVAILABLE, f"cannot connect to {address}: {reason(error)}")


class BlockingStream:
    """Stream for one thread. Any thread may call cut() and read_from_any_thread()."""

    def __init__(  # noqa: PLR0913 (by keyword)
        self,
        address: str,
        path: str,
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        timeout_s: float,
        tls: Tls | None = None,
        background_keepalive: bool = True,
        opened: socket.socket | None = None,
    ) -> None:
        """Connect and open the stream; raise RpcError if the server refuses or is unreachable.

        timeout_s applies to the connection, and again to the server's settings. Set
        background_keepalive to False if the owner polls the socket all the time. opened: the
        result of open_for_other_process(), with the metadata.
        """
        self._closed = False
        self._ended = False
        self._error: RpcError | None = None
        self._messages: deque[bytes] = deque()
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._connection = ClientConnection(_LIMITS, wake=_nothing, on_stream_slot=_nothing)
        self._http2 = self._connection.http2
        self._sender = self._http2.sender
        self._lock = threading.Lock()
        try:
            self._socket = opened or connect(address, timeout_s, tls)
        except OSError as error:
            raise _unreachable(address, error) from error
        # recv() on a Unix socket also wakes up when the peer reads data, because the socket becomes
        # writable. poll() avoids these wake-ups.
        self._readable: select.poll | None = None
        if self._socket.family == socket.AF_UNIX:
            self._readable = select.poll()
            self._readable.register(self._socket, select.POLLIN)
        block = request_block(path, authority_of(address), metadata, secure=tls is not None)
        self._stream = ClientStream(block, self._messages.append, self._on_close)
        try:
            self._connection.start(self._stream)
            if opened is not None:
                # The other process has sent the same bytes, but for the metadata.
                self._http2.data_to_send()
            self._open(timeout_s)
        except RpcError as refused:
            self._socket.close()
            if tls is None:
                raise
            raise RpcError(refused.status, refused.message + REFUSED) from refused
        if background_keepalive:
            _BACKGROUND_READER.add_stream(self)

    def receive(self) -> bytes | None:
        """Block until the next message; return None after a regular end, close() or cut()."""
        messages = self._messages
        with self._lock:
            while not messages:
                if self._ended or self._closed:
                    self._raise_error()
                    return None
                if self._readable is not None:
                    self._readable.poll()
                self._read()
            return messages.popleft()

    def fileno(self) -> int:
        """Return the socket's descriptor, for owners that poll other descriptors as well."""
        return self._socket.fileno()

    @property
    def has_input(self) -> bool:
        """True if read_messages() has a result even though the socket has nothing to read."""
        return bool(self._messages) or self._ended or self._closed

    @property
    def ended(self) -> bool:
        """True if no further message will come and read_messages() will not raise an error."""
        ended_well = self._ended and self._error is None
        return (ended_well or self._closed) and not self._messages

    def read_messages(self) -> list[bytes]:
        """Return the messages that have arrived, without waiting. This is for owners that poll."""
        with self._lock:
            messages = self._take_messages()
            if not messages and (self._ended or self._closed):
                self._raise_error()
            return messages

    def read_from_any_thread(self) -> list[bytes]:
        """Return the messages that have arrived, or none while another thread reads."""
        if not self._lock.acquire(blocking=False):
            return []
        try:
            return self._take_messages()
        finally:
            self._lock.release()

    def send(self, message: bytes) -> None:
        """Write one message; block while the peer's windows or the socket are full."""
        with self._lock:
            if self._ended:
                self._raise_error()
                raise RpcError(Status.UNAVAILABLE, "the stream has ended")
            self._stream.send(message)
            self._flush()
            while self._stream.queued_bytes and not self._ended:
                self._read()
            if self._error is not None and not self._closed:
                raise self._error

    def cut(self) -> None:
        """End the stream from any thread; a blocked receive() returns None.

        The owner must still close the stream. Until then the system cannot reuse the descriptor, on
        which the owner may wait.
        """
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut the stream and close its socket. Only the owner may call this."""
        self.cut()
        _BACKGROUND_READER.remove_stream(self)
        # A thread that holds the lock and waits for input wakes up, because cut() shut the socket
        # down.
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                self._socket.close()
            finally:
                self._lock.release()

    def read_in_background(self) -> None:
        """Reply to the peer's pings and settings while the owner is busy."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            # select() refuses descriptors above 1023.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while not (self._ended or self._closed):
                if not poll.poll(0) or not self._try_read():
                    return
        except (OSError, ValueError):
            return
        finally:
            self._lock.release()

    def _open(self, timeout_s: float) -> None:
        self._flush()
        limit = time.monotonic() + timeout_s
        while not self._connection.settled and not self._ended:
            self._socket.settimeout(max(0.001, limit - time.monotonic()))
            self._read()
        if self._error is not None:
            raise self._error
        self._socket.settimeout(None)

    def _raise_error(self) -> None:
        if self._closed:
            with contextlib.suppress(OSError):
                self._socket.close()
            return
        if self._error is not None:
            raise self._error

    def _take_messages(self) -> list[bytes]:
        """Return all messages that have arrived, without waiting.

        One read is enough for a plain socket, because poll() reports what is left. poll() does not
        see data that TLS has already decrypted, so read a TLS socket until it is empty.
        """
        if not isinstance(self._socket, ssl.SSLSocket):
            if not (self._ended or self._closed):
                self._read(0, socket.MSG_DONTWAIT)
        else:
            while not (self._ended or self._closed) and self._try_read():
                pass
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def _try_read(self) -> bool:
        self._socket.settimeout(0)
        try:
            return self._read()
        finally:
            self._socket.settimeout(None)

    def _read(self, *limits: int) -> bool:
        """Read once with these arguments for recv_into(); return False if nothing came."""
        try:
            size = self._socket.recv_into(self._buffer, *limits)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except TimeoutError:
            self._lost("the server does not respond")
            return False
        except OSError as error:
            self._lost(f"connection lost: {reason(error)}")
            return False
        self._feed(size)
        return True

    def _feed(self, size: int) -> None:
        if size == 0:
            self._lost("the server closed the connection")
            return
        http2 = self._http2
        http2.receive_data(bytes(self._view[:size]))
        if self._sender.out or self._sender.ready:
            self._flush()
        error = http2.control.error
        if error is not None:
            self._lost(error.message)

    def _flush(self) -> None:
        sender = self._sender
        try:
            # Checking the two fields here saves a call of data_to_send().
            while (sender.out or sender.ready) and (out := self._http2.data_to_send()):
                self._socket.sendall(out[0] if len(out) == 1 else b"".join(out))
        except OSError as error:
            self._lost(f"connection lost: {reason(error)}")

    def _lost(self, why: str) -> None:
        self._http2.connection_lost()
        self._stream.close(RpcError(Status.UNAVAILABLE, why))

    def _on_close(self, error: RpcError | None) -> None:
        self._ended = True
        self._error = error


def _nothing() -> None:
    pass


def _ignore(_what: object) -> None:
    pass


class _BackgroundReader:
    def __init__(self) -> None:
        self._streams: set[BlockingStream] = set()
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._reader: threading.Thread | None = None

    def add_stream(self, stream: BlockingStream) -> None:
        with self._lock:
            self._streams.add(stream)
            if self._reader is None:
                self._idle.clear()
                self._reader = threading.Thread(
                    target=self._run, name="nereid-rpc-reader", daemon=True
                )
                self._reader.start()

    def remove_stream(self, stream: BlockingStream) -> None:
        with self._lock:
            self._streams.discard(stream)
            if not self._streams:
                self._idle.set()

    def _run(self) -> None:
        while True:
            self._idle.wait(_BACKGROUND_READ_S)
            with self._lock:
                streams = list(self._streams)
                if not streams:
                    self._reader = None
                    return
            for stream in streams:
                stream.read_in_background()


_BACKGROUND_READER: Final = _BackgroundReader()
