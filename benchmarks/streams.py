"""Load of decoupled models: a gRPC client for streams that needs very little CPU.

The client has one thread, few connections, and one request on each stream. When a stream has ended,
the next one begins. The client reads only frames, and neither headers nor messages: it counts
responses by their bytes. This module must not know which server it loads.
"""

import selectors
import socket
import struct
import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks import wire
from benchmarks.failure import BenchError
from benchmarks.load import Load, connections

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_MAX_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65535
_STALLED_S = 60
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass
class Seen:
    """What was received so far: number of ended streams, and times to the first responses."""

    streams: int = 0
    first_s: list[float] = field(default_factory=list)


@dataclass
class _Stream:
    opened: float
    data_bytes: int = 0


class StreamClient:
    """The client of streams.

    response_bytes: size of a response message, without the 5 bytes of its prefix.
    """

    def __init__(
        self, address: wire.Address, message: bytes, responses: int, response_bytes: int
    ) -> None:
        self._address = address
        self._message = message
        self._data_bytes = responses * (response_bytes + 5)

    def run(self, concurrency: int, seconds: float) -> Load:
        """Run this many streams at a time.

        In the returned load, `requests` counts streams, and p50 and p99 are about the time to the
        first response.
        """
        seen = Seen()
        count, streams = connections(concurrency)
        began, cpu_began = time.perf_counter(), time.process_time()
        with selectors.DefaultSelector() as selector:
            opened = [self._connect(streams, seen) for _ in range(count)]
            try:
                for connection in opened:
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                self._receive(selector, opened, began + seconds)
            finally:
                for connection in opened:
                    connection.socket.close()
        p50, p99 = np.percentile(seen.first_s, [50, 99]) * 1e6
        return Load(
            requests=seen.streams,
            duration_s=time.perf_counter() - began,
            p50_us=float(p50),
            p99_us=float(p99),
            client_cpu_s=time.process_time() - cpu_began,
            data_bytes=seen.streams * self._data_bytes,
        )

    def _connect(self, streams: int, seen: Seen) -> "Connection":
        place = ("127.0.0.1", self._address.grpc_port)
        connected = socket.create_connection(place, timeout=_STALLED_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(connected, self._message, self._data_bytes, seen)
        for _ in range(streams):
            connection.open_stream()
        connection.send()
        return connection

    @staticmethod
    def _receive(selector: selectors.BaseSelector, opened: list["Connection"], end: float) -> None:
        while any(connection.streams for connection in opened):
            ready = selector.select(_STALLED_S)
            if not ready:
                raise BenchError(f"no stream received anything for {_STALLED_S} s")
            more = time.perf_counter() < end
            for key, _ in ready:
                key.data.receive(more)


class Connection:
    """One HTTP/2 connection.

    Frames are encoded by the RFC. Sent data stays within the first window of the server, which
    every server enlarges long before the window is used up.
    """

    def __init__(
        self, connected: socket.socket, message: bytes, data_bytes: int, seen: Seen
    ) -> None:
        self.socket = connected
        self.streams: dict[int, _Stream] = {}
        self._body = struct.pack(">BI", 0, len(message)) + message
        self._data_bytes = data_bytes
        self._seen = seen
        self._next = 1
        self._window = _FIRST_WINDOW
        self._unacknowledged = 0
        self._received = b""
        settings = struct.pack(">HI", 4, _MAX_WINDOW)
        grow = struct.pack(">I", _MAX_WINDOW - _FIRST_WINDOW)
        self._out = [_PREFACE, frame(_SETTINGS, 0, 0, settings), frame(_WINDOW_UPDATE, 0, 0, grow)]

    def open_stream(self) -> None:
        """Open a stream, and queue its request."""
        self._window -= len(self._body)
        if self._window < 0:
            raise BenchError("the server does not open its window for the connection")
        self._out.append(frame(_HEADERS, _END_HEADERS, self._next, _REQUEST_HEADERS))
        self._out.append(frame(_DATA, _END_STREAM, self._next, self._body))
        self.streams[self._next] = _Stream(time.perf_counter())
        self._next += 2

    def send(self) -> None:
        """Write all queued frames."""
        if self._out:
            self.socket.sendall(b"".join(self._out))
            self._out.clear()

    def receive(self, more: bool) -> None:
        """Read the available frames; more: open another stream when a stream has ended."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise BenchError("the server closed the connection")
        data = self._received + data
        start, now = 0, time.perf_counter()
        while len(data) - start >= 9:
            length = int.from_bytes(data[start : start + 3], "big")
            end = start + 9 + length
            if end > len(data):
                break
            kind, flags = data[start + 3], data[start + 4]
            number = int.from_bytes(data[start + 5 : start + 9], "big")
            if kind == _DATA:
                self._on_data(number, length, now)
            else:
                self._on_control(kind, flags, number, data[start + 9 : end])
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                self._on_end(number, more)
            start = end
        self._received = data[start:]
        self.send()

    def _on_data(self, number: int, length: int, now: float) -> None:
        stream = self.streams[number]
        if not stream.data_bytes:
            self._seen.first_s.append(now - stream.opened)
        stream.data_bytes += length
        self._unacknowledged += length
        if self._unacknowledged > _MAX_WINDOW // 2:
            update = struct.pack(">I", self._unacknowledged)
            self._out.append(frame(_WINDOW_UPDATE, 0, 0, update))
            self._unacknowledged = 0

    def _on_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._out.append(frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _WINDOW_UPDATE and number == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == _GOAWAY or (kind == _RESET and number in self.streams):
            raise BenchError(f"the server ended stream {number} with {payload.hex()}")

    def _on_end(self, number: int, more: bool) -> None:
        stream = self.streams.pop(number)
        if stream.data_bytes != self._data_bytes:
            raise BenchError(
                f"a stream of {stream.data_bytes} bytes, expected {self._data_bytes}: it failed"
            )
        self._seen.streams += 1
        if more:
            self.open_stream()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return a header field without indexing and without Huffman's code."""
    parts = [b"\0"]
    for text in (name.encode(), value.encode()):
        parts += [bytes([len(text)]), text]
    return b"".join(parts)


_REQUEST_HEADERS = b"\x83\x86" + b"".join(
    _literal(*pair)
    for pair in (
        (":path", wire.STREAM_PATH),
        (":authority", "127.0.0.1"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
)
