"""Clients of streams whose tokens are their model's clock, over gRPC and as server-sent events.

Both look for the clock in the bytes that arrive, and for little else, so that they cost the same.
"""

import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks import streams
from benchmarks.failure import BenchError
from benchmarks.load import connections
from benchmarks.process import ServerProcess

_CLOCK = re.compile(rb"@(\d{19})")
_CLOCK_BYTES = 20
_LAST_CHUNK = b"0\r\n\r\n"
_RECEIVE_BYTES = 1 << 18
_STALLED_S = 60
_WARM_S = 1.0


Opened = tuple[socket.socket, "_Connection"]


@dataclass(frozen=True)
class Run:
    """What a measurement gave: the times from the model to the clients of each kind, and CPU time.

    cpu_s: of all processes of the server.
    """

    delays_us: Sequence[Sequence[float]]
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        """CPU time of a token in microseconds."""
        return self.cpu_s / sum(map(len, self.delays_us)) * 1e6


class _Connection(Protocol):
    @property
    def streams(self) -> Collection[int]: ...

    def receive(self, more: bool) -> None: ...


class _ClockSocket(socket.socket):
    """A socket that notes how long ago each token that it reads was written."""

    def __init__(self, port: int, delays_us: list[float]) -> None:
        super().__init__()
        self.settimeout(_STALLED_S)
        self.connect(("127.0.0.1", port))
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._delays_us = delays_us
        self._rest = b""

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        now = time.monotonic_ns()
        text = self._rest + data
        end = 0
        for clock in _CLOCK.finditer(text):
            self._delays_us.append((now - int(clock[1])) / 1e3)
            end = clock.end()
        self._rest = text[max(end, len(text) - _CLOCK_BYTES + 1) :]
        return data


class _EventConnection:
    """One connection with one stream of events after the other."""

    def __init__(self, connected: socket.socket, request: bytes) -> None:
        self.streams = {1}
        self._socket = connected
        self._request = request
        self._end = b""
        connected.sendall(request)

    def receive(self, more: bool) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data or (data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200")):
            raise BenchError(f"the server does not stream: {data[:500]!r}")
        self._end = (self._end + data)[-len(_LAST_CHUNK) :]
        if self._end == _LAST_CHUNK:
            if more:
                self._socket.sendall(self._request)
            else:
                self.streams.clear()


def connect_grpc(
    port: int, count: int, message: bytes, stream_bytes: int, delays_us: list[float]
) -> list[Opened]:
    """Open gRPC streams. stream_bytes: of a stream's responses."""
    opened: list[Opened] = []
    number, each = connections(count)
    for _ in range(number):
        connected = _ClockSocket(port, delays_us)
        connection = streams.Connection(connected, message, stream_bytes, streams.Seen())
        for _ in range(each):
            connection.open_stream()
        connection.send()
        opened.append((connected, connection))
    return opened


def connect_events(port: int, count: int, body: bytes, delays_us: list[float]) -> list[Opened]:
    """Open streams of events."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    opened = [_ClockSocket(port, delays_us) for _ in range(count)]
    return [(connected, _EventConnection(connected, request)) for connected in opened]


def chat_body(model: str) -> bytes:
    """Return the body of a streamed chat."""
    message = {"role": "user", "content": "hello"}
    return json.dumps({"model": model, "messages": [message], "stream": True}).encode()


def run(
    server: ServerProcess,
    connects: Sequence[Callable[[list[float]], list[Opened]]],
    seconds: float,
) -> Run:
    """Measure the streams of all kinds at the same time; each opens the next when it has ended."""
    delays_us: list[list[float]] = [[] for _ in connects]
    seen: list[list[float]] = []
    opened = [
        each
        for connect, delays in zip(connects, delays_us, strict=True)
        for each in connect(delays)
    ]
    warm = time.monotonic() + _WARM_S
    begun_cpu_s = cpu_s = 0.0
    begun = False
    with selectors.DefaultSelector() as selector:
        for connected, connection in opened:
            selector.register(connected, selectors.EVENT_READ, connection)
        while any(connection.streams for _, connection in opened):
            ready = selector.select(_STALLED_S)
            if not ready:
                raise BenchError(f"no stream received anything for {_STALLED_S} s")
            for key, _ in ready:
                key.data.receive(not seen)
            now = time.monotonic()
            if not begun and now >= warm:
                begun = True
                begun_cpu_s = sum(server.cpu_s().values())
                for delays in delays_us:
                    delays.clear()
            elif not seen and now >= warm + seconds:
                seen = [list(delays) for delays in delays_us]
                cpu_s = sum(server.cpu_s().values()) - begun_cpu_s
    for connected, _ in opened:
        connected.close()
    if not seen or not all(seen):
        raise BenchError("no token was received")
    return Run(seen, cpu_s)
