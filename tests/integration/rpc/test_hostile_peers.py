"""Hostile and broken peers against the server: each loses its own connection and harms no other.

The peer is a raw socket that writes whatever frames a test likes. After each attack a well-behaved
client on another connection gets its response.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import h2.config
import h2.connection
import h2.events
import hpack
import pytest

from nereid.rpc import Call, Handlers, Server, ServerOptions, SocketChannel
from tests.support.rpc.raw_peer import (
    ACK,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL,
    FRAME_SIZE,
    GOAWAY,
    HEADERS,
    LIMIT_S,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PROTOCOL,
    PUSH,
    REFUSED,
    REQUEST,
    RST,
    SETTINGS,
    WINDOW,
    Peer,
    block,
    frame,
    request,
)


@pytest.fixture
async def server() -> AsyncIterator[str]:
    def echo(call: Call, message: bytes) -> None:
        call.reply(message)

    def hold(call: Call, message: bytes) -> None:
        held.append(call)

    held: list[Call] = []
    options = ServerOptions(max_message_bytes=1 << 20, max_concurrent_streams=50)
    server = Server(
        Handlers(unary={"/test/Echo": echo, "/test/Hold": hold}, async_unary={}, stream={}), options
    )
    address = await server.listen("127.0.0.1:0")
    yield address
    channel = SocketChannel(address)
    async with asyncio.timeout(LIMIT_S):
        assert await channel.unary("/test/Echo", b"still here") == b"still here"
    await channel.close()
    await server.close()


@pytest.fixture
async def peer(server: str) -> AsyncIterator[Peer]:
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield Peer(reader, writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.fixture
async def greeted(peer: Peer) -> Peer:
    await peer.send(PREFACE + frame(SETTINGS))
    await peer.expect(SETTINGS)
    return peer


async def test_a_plain_request_gets_a_response(greeted: Peer) -> None:
    await greeted.send(request())
    _, stream, payload = await greeted.expect(DATA)
    assert (stream, payload[5:]) == (1, b"hi")


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, PREFACE[:-1] + b"X"])
async def test_a_bad_preface_ends_the_connection(peer: Peer, start: bytes) -> None:
    await peer.send(start + frame(SETTINGS))
    await peer.expect_end()


async def test_the_first_frame_must_be_settings(peer: Peer) -> None:
    await peer.send(PREFACE + frame(PING, 0, 0, bytes(8)))
    await peer.expect_goaway(PROTOCOL)


CONNECTION_ERRORS: dict[str, tuple[bytes, int | None]] = {
    "oversized frame": (b"\xff\xff\xff\0\0\0\0\0\1", FRAME_SIZE),
    "data on stream 0": (frame(DATA, 0, 0, b"x"), PROTOCOL),
    "headers on stream 0": (frame(HEADERS, END_HEADERS, 0, block()), PROTOCOL),
    "even stream": (frame(HEADERS, END_HEADERS, 2, block()), PROTOCOL),
    "data on an idle stream": (frame(DATA, 0, 1, b"x"), PROTOCOL),
    "reset of an idle stream": (frame(RST, 0, 1, bytes(4)), PROTOCOL),
    "reset of stream 0": (frame(RST, 0, 0, bytes(4)), PROTOCOL),
    "short reset": (frame(HEADERS, END_HEADERS, 1, block()) + frame(RST, 0, 1, b"x"), FRAME_SIZE),
    "short ping": (frame(PING, 0, 0, b"x"), FRAME_SIZE),
    "ping on a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "settings on a stream": (frame(SETTINGS, 0, 1), PROTOCOL),
    "odd settings": (frame(SETTINGS, 0, 0, b"12345"), FRAME_SIZE),
    "settings ack with payload": (frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE),
    "window too large": (
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
        FLOW_CONTROL,
    ),
    "bad max frame size": (frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 100)), PROTOCOL),
    "bad enable push": (frame(SETTINGS, 0, 0, struct.pack(">HI", 2, 7)), PROTOCOL),
    "zero window update": (frame(WINDOW, 0, 0, bytes(4)), PROTOCOL),
    "window overflow": (frame(WINDOW, 0, 0, struct.pack(">I", 0x7FFFFFFF)), FLOW_CONTROL),
    "short window update": (frame(WINDOW, 0, 0, b"x"), FRAME_SIZE),
    "push promise": (
        frame(HEADERS, END_HEADERS, 1, block()) + frame(PUSH, END_HEADERS, 1, bytes(4)),
        PROTOCOL,
    ),
    "short goaway": (frame(GOAWAY, 0, 0, b"x"), FRAME_SIZE),
    "goaway on a stream": (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "lone continuation": (frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL),
    "interrupted headers": (
        frame(HEADERS, 0, 1, block()[:5]) + frame(PING, 0, 0, bytes(8)),
        PROTOCOL,
    ),
    "continuation of another stream": (
        frame(HEADERS, 0, 1, block()[:5]) + frame(CONTINUATION, END_HEADERS, 3, block()[5:]),
        PROTOCOL,
    ),
    "padding past the frame": (
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block()),
        PROTOCOL,
    ),
    "undecodable headers": (frame(HEADERS, END_HEADERS, 1, b"\xff" * 20), COMPRESSION),
    "descending streams": (
        frame(HEADERS, END_HEADERS, 5, block()) + frame(HEADERS, END_HEADERS, 3, block()),
        None,
    ),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
async def test_connection_errors_are_named_and_final(greeted: Peer, name: str) -> None:
    attack, code = CONNECTION_ERRORS[name]
    await greeted.send(attack)
    await greeted.expect_goaway(code)


async def test_a_stream_window_overflow_resets_the_stream(greeted: Peer) -> None:
    update = frame(WINDOW, 0, 1, struct.pack(">I", 0x7FFFFFFF))
    await greeted.send(frame(HEADERS, END_HEADERS, 1, block()) + update + update)
    await greeted.expect_reset(1, FLOW_CONTROL)
    await greeted.send(request(3))
    assert (await greeted.expect(DATA))[1] == 3


async def test_a_message_past_the_limit_is_refused_before_it_is_there(greeted: Peer) -> None:
    hold = [(k, "/test/Hold" if k == ":path" else v) for k, v in REQUEST]
    opening = frame(HEADERS, END_HEADERS, 1, block(hold))
    message = b"\0" + struct.pack(">I", 1 << 30)
    await greeted.send(opening + frame(DATA, 0, 1, message))
    kind, stream = await _first_of(greeted, HEADERS, RST, GOAWAY)
    assert kind in (HEADERS, RST)
    assert stream == 1


async def _first_of(peer: Peer, *kinds: int) -> tuple[int, int]:
    async with asyncio.timeout(LIMIT_S):
        async for kind, _, stream, _ in peer.frames():
            if kind in kinds:
                return kind, stream
    raise AssertionError("the connection ended")


MALFORMED: dict[str, list[tuple[str, str]]] = {
    "upper-case name": [*REQUEST, ("X-Upper", "1")],
    "connection header": [*REQUEST, ("connection", "close")],
    "transfer-encoding": [*REQUEST, ("transfer-encoding", "chunked")],
    "te other than trailers": [*REQUEST[:-1], ("te", "gzip")],
    "unknown pseudo-header": [(":what", "1"), *REQUEST],
    "response pseudo-header": [(":status", "200"), *REQUEST],
    "pseudo-header after others": [*REQUEST[1:], REQUEST[0]],
    "no path": [pair for pair in REQUEST if pair[0] != ":path"],
    "two paths": [REQUEST[2], *REQUEST],
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_reset_their_stream_alone(greeted: Peer, name: str) -> None:
    await greeted.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(MALFORMED[name])))
    await greeted.expect_reset(1, PROTOCOL)
    await greeted.send(request(3))
    assert (await greeted.expect(DATA))[1] == 3


async def test_a_continuation_flood_ends_the_connection(greeted: Peer) -> None:
    await greeted.send(frame(HEADERS, 0, 1, block()))
    for _ in range(2000):
        await greeted.send(frame(CONTINUATION, 0, 1, b""))
    await greeted.expect_end()


async def test_a_large_continuation_flood_ends_the_connection(greeted: Peer) -> None:
    await greeted.send(frame(HEADERS, 0, 1, block()))
    for _ in range(200):
        await greeted.send(frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f" + b"b" * 16000))
    await greeted.expect_end()


async def test_a_header_bomb_is_refused(greeted: Peer) -> None:
    encoder = hpack.Encoder()
    large = ("x-bomb", "b" * 3000)
    bomb = encoder.encode([*REQUEST, large])
    # Each of these bytes is a reference to the 3,000-byte header in the dynamic table.
    bomb += encoder.encode([large]) * 5000
    await greeted.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, bomb))
    kind, _ = await _first_of(greeted, HEADERS, RST, GOAWAY)
    assert kind in (HEADERS, RST, GOAWAY)


async def test_rapid_resets_end_the_connection(greeted: Peer) -> None:
    hold = block([(k, "/test/Hold" if k == ":path" else v) for k, v in REQUEST])
    for stream in range(1, 40001, 2):
        await greeted.send(
            frame(HEADERS, END_HEADERS, stream, hold) + frame(RST, 0, stream, bytes(3) + b"\x08")
        )
        if greeted.writer.is_closing():
            break
    await greeted.expect_goaway(ENHANCE_YOUR_CALM)


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS),
        frame(PRIORITY, 0, 1, struct.pack(">IB", 3, 1)),
    ],
    ids=["ping", "settings", "priority"],
)
async def test_control_frame_floods_cost_bounded_memory(greeted: Peer, flood: bytes) -> None:
    """A peer that floods and never reads is cut off, or its flood is simply worked off."""
    await greeted.send(*[flood * 1000] * 60)
    await greeted.send(request(5))
    await _first_of_or_end(greeted)


async def _first_of_or_end(peer: Peer) -> None:
    async with asyncio.timeout(LIMIT_S):
        async for kind, _, _, _ in peer.frames():
            if kind in (DATA, GOAWAY):
                return


async def test_streams_beyond_the_limit_are_refused(greeted: Peer) -> None:
    hold = block([(k, "/test/Hold" if k == ":path" else v) for k, v in REQUEST])
    message = b"\0" + struct.pack(">I", 1) + b"x"
    for stream in range(1, 103, 2):
        await greeted.send(
            frame(HEADERS, END_HEADERS, stream, hold) + frame(DATA, END_STREAM, stream, message)
        )
    await greeted.expect_reset(101, REFUSED)


async def test_data_after_the_end_of_the_stream(greeted: Peer) -> None:
    hold = block([(k, "/test/Hold" if k == ":path" else v) for k, v in REQUEST])
    message = b"\0" + struct.pack(">I", 1) + b"x"
    await greeted.send(
        frame(HEADERS, END_HEADERS, 1, hold) + frame(DATA, END_STREAM, 1, message) * 2
    )
    kind, _ = await _first_of(greeted, RST, GOAWAY)
    assert kind in (RST, GOAWAY)


async def test_padding_priority_and_unknown_frames_are_accepted(greeted: Peer) -> None:
    header_block = b"\x03" + struct.pack(">IB", 0, 5) + block() + bytes(3)
    message = b"\0" + struct.pack(">I", 2) + b"hi"
    await greeted.send(
        frame(0xEE, 0xFF, 0, b"whatever"),
        frame(HEADERS, END_HEADERS | PADDED | PRIORITISED, 1, header_block),
        frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 9)),
        frame(DATA, PADDED, 1, b"\x05" + message[:3] + bytes(5)),
        frame(0xEE, 0, 1, b"again"),
        frame(DATA, END_STREAM, 1, message[3:]),
    )
    _, stream, payload = await greeted.expect(DATA)
    assert (stream, payload[5:]) == (1, b"hi")


async def test_headers_in_pieces_are_put_together(greeted: Peer) -> None:
    whole = block()
    await greeted.send(frame(HEADERS, 0, 1, whole[:3]), frame(CONTINUATION, 0, 1, whole[3:9]))
    message = b"\0" + struct.pack(">I", 2) + b"hi"
    await greeted.send(
        frame(CONTINUATION, END_HEADERS, 1, whole[9:]), frame(DATA, END_STREAM, 1, message)
    )
    assert (await greeted.expect(DATA))[2][5:] == b"hi"


async def test_a_reader_that_never_reads_costs_bounded_memory(server: str) -> None:
    """The client's window stays shut: the server keeps the response and goes on serving others."""
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = Peer(reader, writer)
    await peer.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    await peer.send(request(1, b"x" * 1000))
    await peer.expect(SETTINGS)
    channel = SocketChannel(server)
    async with asyncio.timeout(LIMIT_S):
        assert await channel.unary("/test/Echo", b"other") == b"other"
    await channel.close()
    await peer.send(frame(WINDOW, 0, 1, struct.pack(">I", 2000)))
    received = b""
    async with asyncio.timeout(LIMIT_S):
        async for kind, _, _, data in peer.frames():
            if kind == DATA:
                received += data
            if len(received) == 1005:
                break
    writer.close()
    assert received[5:] == b"x" * 1000


async def test_h2_as_a_client_gets_a_response(server: str) -> None:
    """The reference implementation of another family speaks with the server."""
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connection = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=True, header_encoding=None)
    )
    connection.initiate_connection()
    count = 20
    for _ in range(count):
        stream = connection.get_next_available_stream_id()
        connection.send_headers(stream, REQUEST)
        connection.send_data(stream, b"\0\0\0\0\2hi", end_stream=True)
    writer.write(connection.data_to_send())
    ended, statuses, bodies = 0, [], []
    async with asyncio.timeout(LIMIT_S):
        while ended < count:
            for event in connection.receive_data(await reader.read(65536)):
                if isinstance(event, h2.events.DataReceived):
                    bodies.append(event.data)
                if isinstance(event, h2.events.TrailersReceived):
                    statuses.append(dict(event.headers)[b"grpc-status"])
                ended += isinstance(event, h2.events.StreamEnded)
            writer.write(connection.data_to_send())
    writer.close()
    assert bodies == [b"\0\0\0\0\2hi"] * count
    assert statuses == [b"0"] * count
