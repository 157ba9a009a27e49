"""A pure connection under test, and its peer: feed it frames, read the frames that it sends.

ServerHarness and ClientHarness are what unit tests begin with; nothing here does I/O or sleeps.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, Self, TypeVar

import hpack

from nereid.rpc.grpc.call import Call
from nereid.rpc.grpc.client_connection import ClientConnection, ClientStream, request_block
from nereid.rpc.grpc.compression import inflated_message
from nereid.rpc.grpc.deadlines import Deadlines
from nereid.rpc.grpc.handlers import Handlers, routes_of
from nereid.rpc.grpc.server_connection import (
    CompressingCall,
    ServerCall,
    ServerConnection,
    ServerContext,
)
from nereid.rpc.grpc.status import RpcError
from nereid.rpc.http2.frames import PREFACE, Code
from nereid.rpc.http2.limits import Limits
from nereid.rpc.net.inflation import Inflation
from nereid.rpc.net.limits.budget import ByteBudget
from tests.support.rpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    REQUEST,
    Fields,
    Frame,
    Reader,
    frame,
    message,
    settings,
    to,
)

Role = TypeVar("Role", bound=ClientConnection | ServerConnection)


class _Harness(Generic[Role]):
    """A connection of either role."""

    def __init__(self, connection: Role) -> None:
        self.connection = connection
        self.http2 = connection.http2
        self.encoder = hpack.Encoder()
        self.reader = Reader()

    def feed(self, *parts: bytes) -> Self:
        for each in parts:
            part = each
            while self.http2.receive_data(part):
                part = b""
        return self

    def sent_frames(self) -> list[Frame]:
        data = b""
        while out := self.http2.data_to_send():
            data += b"".join(out)
        return self.reader.read(data)

    def one(self, kind: int) -> Frame:
        """The one frame of this kind among those sent."""
        frames = [each for each in self.sent_frames() if each.kind == kind]
        assert len(frames) == 1, frames
        return frames[0]


class ServerHarness(_Harness[ServerConnection]):
    """A server connection with one method of each kind, and a clock that tests set."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        greet: bool = True,
        budget: ByteBudget | None = None,
        defer_inflation: bool = False,
        compression: str = "none",
        defer_compression: bool = False,
    ) -> None:
        """defer_inflation: large messages wait in `inflations` for the test. compression: the
        level; defer_compression: calls with messages to compress are in `deflations`.
        """
        self.now = 1000.0
        self.inflations: list[tuple[ServerCall, Inflation]] = []
        self.deflations: list[CompressingCall] = []
        self.calls: list[Call] = []
        self.events: list[Any] = []
        # When the timer of deadlines was set, and for which time.
        self.timers: list[float | None] = []
        handlers = Handlers(
            unary={"/test/Echo": self.echo, "/test/Hold": self.hold, "/test/Fail": self.broken},
            async_unary={"/test/Later": self.later},
            stream={"/test/Chat": self.chat, "/test/Raw": self.raw},
            compressible=frozenset({"/test/Echo", "/test/Hold", "/test/Raw"}),
        )
        self.deadlines: Deadlines[ServerCall] = Deadlines()
        context = ServerContext(
            routes_of(handlers),
            self.deadlines,
            now=lambda: self.now,
            spawn=self.spawn,
            on_earlier_deadline=lambda: self.timers.append(self.deadlines.next_due()),
            budget=budget,
            inflate=self._keep_inflation if defer_inflation else None,
            compression=compression,
            deflate=self.deflations.append if defer_compression else None,
        )
        super().__init__(ServerConnection(limits or Limits(), context, "peer", wake=lambda: None))
        if greet:
            self.feed(PREFACE + settings())
            self.sent_frames()

    def headers(self, stream: int, fields: Fields | None = None, flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self.encoder.encode(fields or REQUEST))

    def request(self, stream: int, body: bytes = b"hi", path: str = "/test/Echo") -> bytes:
        return self.headers(stream, to(path)) + frame(DATA, END_STREAM, stream, message(body))

    def _keep_inflation(self, call: ServerCall, inflation: Inflation) -> None:
        self.inflations.append((call, inflation))

    def finish_inflation(self) -> None:
        """Inflate the message that has waited longest, and hand it back."""
        call, inflation = self.inflations.pop(0)
        while not inflation.done:
            inflation.inflate()
        self.connection.on_inflated(call, inflated_message(inflation))

    def compress_waiting(self) -> None:
        """Compress the next message of the call that has waited longest, and send it."""
        call = self.deflations[0]
        deflation = call.begin_deflation()
        assert deflation is not None
        while not deflation.done:
            deflation.deflate()
        call.send_deflated(deflation.content())
        if not call.waiting:
            self.deflations.remove(call)

    # --- handlers

    def _keep(self, call: Call) -> None:
        self.calls.append(call)
        call.on_cancel = lambda: self.events.append("cancelled")

    def echo(self, call: Call, body: bytes) -> None:
        self.calls.append(call)
        call.reply(body)

    def hold(self, call: Call, body: bytes) -> None:
        self._keep(call)

    def broken(self, call: Call, body: bytes) -> None:
        raise ValueError("secret")

    async def later(self, call: Call, body: bytes) -> bytes:
        return body

    def spawn(self, call: Call, handler: object, body: bytes) -> None:
        self.events.append((call.path, body))

    def chat(self, call: Call) -> None:
        self._keep(call)
        call.on_message = call.send
        call.on_half_close = call.finish

    def raw(self, call: Call) -> None:
        self._keep(call)
        call.on_message = self.events.append
        call.on_half_close = lambda: self.events.append("half closed")
        call.on_writable = lambda: self.events.append("writable")


class ClientHarness(_Harness[ClientConnection]):
    """A client connection and the streams opened on it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.slots = 0
        super().__init__(
            ClientConnection(
                limits or Limits(trusts_peer=True),
                wake=lambda: None,
                on_stream_slot=self._on_stream_slot,
            )
        )
        self.messages: list[bytes] = []
        self.closes: list[RpcError | None] = []
        self.opens = 0
        self.writable = 0
        opening = b"".join(self.http2.data_to_send())
        assert opening.startswith(PREFACE)
        self.opening = self.reader.read(opening[len(PREFACE) :])
        self.feed(settings())
        self.sent_frames()

    def _on_stream_slot(self) -> None:
        self.slots += 1

    def headers(self, fields: list[tuple[str, str]], flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, 1, self.encoder.encode(fields))

    def stream(self) -> ClientStream:
        block = request_block("/test/Echo", "host", (("a", "b"),), timeout_s=2)
        return ClientStream(
            block, self.messages.append, self.closes.append, self._on_open, self._on_writable
        )

    def _on_writable(self) -> None:
        self.writable += 1

    def _on_open(self) -> None:
        self.opens += 1

    def start(self) -> ClientStream:
        stream = self.stream()
        self.connection.start(stream)
        return stream

    @property
    def error(self) -> RpcError:
        assert len(self.closes) == 1
        error = self.closes[0]
        assert error is not None
        return error


def response_of(server: ServerHarness, stream: int = 1) -> bytes:
    """The one message sent on a stream that ended with OK."""
    frames = [each for each in server.sent_frames() if each.stream == stream]
    assert [each.kind for each in frames[:1] + frames[-1:]] == [HEADERS, HEADERS]
    assert frames[0].fields == {":status": "200", "content-type": "application/grpc"}
    assert frames[-1].fields == {"grpc-status": "0"}
    assert frames[-1].flags == END_HEADERS | END_STREAM
    data = b"".join(each.payload for each in frames if each.kind == DATA)
    assert data[:5] == struct.pack(">BI", 0, len(data) - 5)
    return data[5:]


def connection_error(server: ServerHarness) -> Code:
    """The code that the connection ended with; it must be silent from then on."""
    last = server.one(GOAWAY)
    assert server.http2.error is not None
    server.feed(frame(PING, payload=bytes(8)))
    assert server.sent_frames() == []
    return Code(last.code)


def statuses(server: ServerHarness) -> list[str]:
    """The gRPC statuses of the calls that ended."""
    return [
        each.fields["grpc-status"] for each in server.sent_frames() if "grpc-status" in each.fields
    ]
