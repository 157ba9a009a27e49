"""Blocking clients on one socket that write any bytes, from a source address of the test's choice.

They read while they write, so that a server that refuses early is noticed early. What became of a
connection is told in a few words: `status 400`, `grpc 3`, `goaway 11`, `reset 8`, `closed`, or
`waiting` when nothing has happened within the limit.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Self

import hpack

from tests.support.rpc.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    message,
    settings,
    to,
    window,
)

_READ_BYTES = 1 << 18
_WRITE_BYTES = 1 << 17
_MAX_WINDOW = (1 << 31) - 1


def is_ready(connection: socket.socket, events: int, limit_s: float) -> bool:
    """Return whether a socket can be read (POLLIN) or written (POLLOUT) within limit_s."""
    poll = select.poll()
    poll.register(connection, events)
    return bool(poll.poll(limit_s * 1000))


class RawClient:
    """One TCP connection."""

    def __init__(self, address: str, source: str, *, receive_bytes: int | None = None) -> None:
        """receive_bytes: of the socket's buffer, so that a client that reads nothing is felt."""
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.bind((source, 0))
        self.socket.settimeout(10)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.closed = False

    def pump(
        self,
        data: bytes = b"",
        *,
        until: Callable[[], object] = lambda: True,
        limit_s: float = 10,
        bytes_per_s: float | None = None,
    ) -> Self:
        """Write data and read, until all is written and until() holds, or it ended, or limit_s."""
        view, start = memoryview(data), time.monotonic()
        size, poll = len(data), select.poll()
        while not self.closed and not self.ended and (view or not until()):
            now = time.monotonic() - start
            if now > limit_s:
                break
            due = len(view)
            if bytes_per_s is not None:
                due = min(due, int(now * bytes_per_s) + 1 - (size - len(view)))
            poll.register(self.socket, select.POLLIN | (select.POLLOUT if due > 0 else 0))
            ready = dict(poll.poll(10)).get(self.socket.fileno(), 0)
            try:
                if ready & select.POLLOUT:
                    view = view[self.socket.send(view[: min(due, _WRITE_BYTES)]) :]
                if ready & ~select.POLLOUT:
                    received = self.socket.recv(_READ_BYTES)
                    self.closed = not received
                    self.on_received(received)
            except BlockingIOError:
                pass
            except ConnectionError:
                self.closed = True
        return self

    @property
    def ended(self) -> bool:
        """Return whether the server has said all that it will."""
        return False

    def on_received(self, data: bytes) -> None:
        """More bytes of the server's."""

    def close(self) -> None:
        self.socket.close()

    def abort(self) -> None:
        """Reset the connection: what is unsent is dropped."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class HttpClient(RawClient):
    """An HTTP/1.1 connection with one request; pipelined: with many, until it is closed."""

    head = b""
    body_bytes = 0
    pipelined = False

    def on_received(self, data: bytes) -> None:
        if b"\r\n\r\n" in self.head:
            self.body_bytes += len(data)
            return
        self.head += data
        head, separator, rest = self.head.partition(b"\r\n\r\n")
        if separator and head.startswith(b"HTTP/1.1 1"):
            # An interim response.
            self.head = b""
            self.on_received(rest)
        elif separator:
            self.head, self.body_bytes = head + separator, len(rest)

    @property
    def ended(self) -> bool:
        """Return whether the whole response is there."""
        if self.pipelined or not self.head.endswith(b"\r\n\r\n"):
            return False
        _, _, size = self.head.lower().partition(b"\r\ncontent-length:")
        return self.body_bytes >= int(size.split(b"\r\n")[0] or 0)

    @property
    def outcome(self) -> str:
        if self.head:
            return f"status {self.head[9:12].decode()}"
        return "closed" if self.closed else "waiting"


def post(
    path: str, body: bytes = b"", *lines: str, method: str = "POST", size: int | None = None
) -> bytes:
    """A request; size: what it claims to bring, if not the body."""
    length = len(body) if size is None else size
    head = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class FrameWriter:
    """Writes frames whose header blocks belong to one connection."""

    def __init__(self) -> None:
        self.encoder = hpack.Encoder()

    def headers(self, stream: int, path: str, *fields: tuple[str, str], end: bool = False) -> bytes:
        block = self.encoder.encode(to(path, *fields))
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


class GrpcClient(RawClient):
    """An HTTP/2 connection; grants the server all the window that it could wish for."""

    def __init__(
        self,
        address: str,
        source: str,
        *,
        window_bytes: int = _MAX_WINDOW,
        receive_bytes: int | None = None,
        reads_messages: bool = True,
    ) -> None:
        """window_bytes: initial window of each stream. reads_messages: give back what was used."""
        super().__init__(address, source, receive_bytes=receive_bytes)
        self._writer = FrameWriter()
        self._decoder = hpack.Decoder(1 << 20)
        self._received = bytearray()
        self._reads_messages = reads_messages
        self._replies = b""
        self.statuses: dict[int, str] = {}
        self.goaway: str | None = None
        self.greeted = False
        self._responding = False
        # Bytes that the server lets this side send: on the connection, on each stream at first, and
        # on each stream beyond that.
        self.window = self.initial_window = 65_535
        self.stream_windows: defaultdict[int, int] = defaultdict(int)
        self.pump(
            PREFACE + settings(window=window_bytes) + window(0, _MAX_WINDOW - 65_535),
            until=lambda: self.greeted,
        )

    @property
    def ended(self) -> bool:
        return self.goaway is not None

    def on_received(self, data: bytes) -> None:
        self._received += data
        buffer, start = self._received, 0
        while len(buffer) - start >= 9:
            size = int.from_bytes(buffer[start : start + 3])
            if len(buffer) - start < 9 + size:
                break
            kind, flags = buffer[start + 3], buffer[start + 4]
            stream = int.from_bytes(buffer[start + 5 : start + 9]) & _MAX_WINDOW
            self._on_frame(kind, flags, stream, bytes(buffer[start + 9 : start + 9 + size]))
            start += 9 + size
        del buffer[:start]
        replies, self._replies = self._replies, b""
        if replies and not self.closed:
            try:
                self.socket.sendall(replies)
            except BlockingIOError:
                pass
            except ConnectionError:
                self.closed = True

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self.greeted = True
            for number, value in struct.iter_unpack(">HI", payload):
                if number == 4:
                    self.initial_window = value
            self._replies += frame(SETTINGS, ACK)
        elif kind == WINDOW and stream == 0:
            self.window += int.from_bytes(payload)
        elif kind == WINDOW:
            self.stream_windows[stream] += int.from_bytes(payload)
        elif kind == HEADERS:
            self._responding = True
            fields = {str(k): str(v) for k, v in self._decoder.decode(payload)}
            if "grpc-status" in fields:
                self.statuses.setdefault(stream, f"grpc {fields['grpc-status']}")
        elif kind == RST:
            self.statuses.setdefault(stream, f"reset {int.from_bytes(payload)}")
        elif kind == GOAWAY:
            self.goaway = f"goaway {int.from_bytes(payload[4:8])}"
        elif kind == DATA and payload and self._reads_messages:
            self._replies += window(0, len(payload))
            if not flags & END_STREAM:
                self._replies += window(stream, len(payload))

    def headers(self, stream: int, path: str, *fields: tuple[str, str], end: bool = False) -> bytes:
        return self._writer.headers(stream, path, *fields, end=end)

    def sendable_bytes(self, stream: int) -> int:
        """Return how many bytes the server lets this side send on a stream."""
        return min(self.window, self.initial_window + self.stream_windows[stream])

    def send_content(
        self, stream: int, content: bytes, *, end: bool = True, limit_s: float = 10
    ) -> None:
        """Content of a stream within the server's windows; less where it refuses, or is slow."""
        view, deadline = memoryview(content), time.monotonic() + limit_s
        while view and not self.closed and not self.ended and stream not in self.statuses:
            left_s = deadline - time.monotonic()
            if left_s < 0:
                return
            piece = view[: min(self.sendable_bytes(stream), 1 << 20)]
            if not piece:
                self.pump(
                    until=lambda: self.sendable_bytes(stream) > 0 or stream in self.statuses,
                    limit_s=left_s,
                )
                continue
            view = view[len(piece) :]
            self.window -= len(piece)
            self.stream_windows[stream] -= len(piece)
            self.pump(data_frames(stream, bytes(piece), end=end and not view), limit_s=left_s)

    def call(
        self,
        stream: int,
        path: str,
        body: bytes,
        *fields: tuple[str, str],
        compressed: int = 0,
        end: bool = True,
        limit_s: float = 10,
    ) -> str:
        """A call with one message: what became of it."""
        self.pump(self.headers(stream, path, *fields))
        self.send_content(stream, message(body, compressed), end=end, limit_s=limit_s)
        return self.wait_for(stream, limit_s)

    def await_response(self, limit_s: float) -> None:
        """Until a response has begun, to any call."""
        self.pump(until=lambda: self._responding, limit_s=limit_s)

    def wait_for(self, stream: int, limit_s: float = 10) -> str:
        """Return the outcome of a call within limit_s."""
        self.pump(until=lambda: stream in self.statuses, limit_s=limit_s)
        return self.outcome_of(stream)

    def outcome_of(self, stream: int = 1) -> str:
        """Return the outcome of a call."""
        if stream in self.statuses:
            return self.statuses[stream]
        return self.goaway or ("closed" if self.closed else "waiting")

    @property
    def outcome(self) -> str:
        """Return the outcome of the connection."""
        return self.goaway or ("closed" if self.closed else "waiting")


def data_frames(stream: int, content: bytes, *, end: bool = False, size: int = 16_384) -> bytes:
    """Content in DATA frames of this size."""
    pieces = [content[at : at + size] for at in range(0, len(content), size)] or [b""]
    frames = [frame(DATA, 0, stream, piece) for piece in pieces[:-1]]
    frames.append(frame(DATA, END_STREAM if end else 0, stream, pieces[-1]))
    return b"".join(frames)
