"""The gateway under thousands of clients, and under hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import hpack
import pytest

from nereid.pb import kserve_pb2
from nereid.rpc import SocketChannel
from tests.support.gateway.gateway_site import EchoScheduler, GatewaySite, gateway_site
from tests.support.peers.measured_process import Measured, measured
from tests.support.rpc.raw_peer import (
    DATA,
    END_HEADERS,
    HEADERS,
    PREFACE,
    REQUEST,
    SETTINGS,
    block,
    frame,
)
from tests.support.rpc.windowed_sender import MIB, NoWindowError, Sender, connect, opening
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 60
UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
READY = "/inference.GRPCInferenceService/ServerReady"
HTTP_INFER = (
    b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n\r\n%b%b"
)


def grpc_request(model: str, content: bytes, request_id: str = "") -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[len(content)])
    request.raw_input_contents.append(content)
    return request.SerializeToString()


def http_request(model: str, content: bytes, request_id: str = "") -> bytes:
    header = (
        b'{"id":"%b","inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[%d],"parameters":'
        b'{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}'
    ) % (request_id.encode(), len(content), len(content))
    size = len(header) + len(content)
    return HTTP_INFER % (model.encode(), len(header), size, header, content)


async def http_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(LIMIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().partition("\r\ncontent-length: ")[2].split("\r\n")[0])
        return int(head.split(" ")[1]), await reader.readexactly(size)


async def serves(http: str, grpc: str) -> None:
    """Other clients get responses, over either protocol."""
    channel = SocketChannel(grpc)
    for _ in range(5):
        assert await channel.unary(READY, b"", timeout_s=LIMIT_S) == b"\x08\x01"
        echoed = await channel.unary(UNARY, grpc_request("echo", b"abc"), timeout_s=LIMIT_S)
        assert kserve_pb2.ModelInferResponse.FromString(echoed).raw_output_contents == [b"abc"]
    await channel.close()
    peer = await connect(http)
    for _ in range(5):
        await peer.send(http_request("echo", b"abc"))
        status, body = await http_response(peer.reader)
        assert (status, body[-3:]) == (200, b"abc")
    peer.writer.close()


async def respond_to_all(scheduler: EchoScheduler, count: int) -> None:
    """In the reverse of their order."""
    held = [await scheduler.next_held() for _ in range(count)]
    for item in reversed(held):
        scheduler.link.send(scheduler.echo(item))


@pytest.fixture
async def site() -> AsyncIterator[GatewaySite]:
    async with gateway_site() as made:
        yield made


async def test_thousands_of_calls_on_few_connections(site: GatewaySite) -> None:
    channels = [SocketChannel(site.grpc) for _ in range(4)]
    calls = [
        asyncio.ensure_future(
            channels[each % 4].unary(UNARY, grpc_request("hold", b"%d" % each, f"id {each}"))
        )
        for each in range(4000)
    ]
    await until(lambda: site.scheduler.held.qsize() == 4000)
    await serves(site.http, site.grpc)
    await respond_to_all(site.scheduler, 4000)
    for each, call in enumerate(calls):
        response = kserve_pb2.ModelInferResponse.FromString(await asyncio.wait_for(call, LIMIT_S))
        assert (response.id, response.raw_output_contents[0]) == (f"id {each}", b"%d" % each)
    for channel in channels:
        await channel.close()


async def test_thousands_of_streams_on_few_connections(site: GatewaySite) -> None:
    channels = [SocketChannel(site.grpc) for _ in range(3)]
    got: dict[int, bytes] = {}
    ends: list[Any] = []
    streams = []
    for each in range(3000):

        def on_message(message: bytes, each: int = each) -> None:
            got[each] = message

        stream = channels[each % 3].stream(STREAM, on_message=on_message, on_close=ends.append)
        stream.send(grpc_request("hold", b"%d" % each))
        streams.append(stream)
    await until(lambda: site.scheduler.held.qsize() == 3000)
    await serves(site.http, site.grpc)
    await respond_to_all(site.scheduler, 3000)
    await until(lambda: len(got) == 3000)
    for each, message in got.items():
        reply = kserve_pb2.ModelStreamInferResponse.FromString(message)
        assert reply.infer_response.raw_output_contents[0] == b"%d" % each
    for stream in streams:
        stream.half_close()
    await until(lambda: len(ends) == 3000)
    assert set(ends) == {None}
    for channel in channels:
        await channel.close()


async def test_thousands_of_http_connections(site: GatewaySite) -> None:
    peers = [await connect(site.http) for _ in range(2000)]
    for each, peer in enumerate(peers):
        await peer.send(http_request("hold", b"%d" % each))
    await until(lambda: site.scheduler.held.qsize() == 2000)
    await serves(site.http, site.grpc)
    await respond_to_all(site.scheduler, 2000)
    for each, peer in enumerate(peers):
        status, body = await http_response(peer.reader)
        assert status == 200
        assert body.endswith(b"}%d" % each)
        peer.writer.close()


@pytest.mark.parametrize("claimed", [1 << 31, (1 << 32) - 1])
async def test_a_message_beyond_what_protobuf_can_hold_is_refused_by_its_head(
    site: GatewaySite, claimed: int
) -> None:
    """The limit is 2 GiB less a byte, as gRPC's; the rest of a larger one is not waited for."""
    peer = await connect(site.grpc)
    await peer.send(opening(65_535))
    sender = Sender(peer, UNARY)
    for stream, size in ((1, (1 << 31) - 1), (3, claimed)):
        await sender.open(stream)
        await peer.send(frame(DATA, 0, stream, struct.pack(">BI", 0, size) + b"abc"))
    _, _, stream, payload = await peer.next_of(HEADERS)
    headers = {str(name): str(value) for name, value in hpack.Decoder().decode(payload)}
    assert (stream, headers["grpc-status"]) == (3, "8")
    assert headers["grpc-message"] == f"message of {claimed} bytes is larger than 2147483647 bytes"
    await serves(site.http, site.grpc)
    peer.writer.close()


@pytest.mark.parametrize("announced", [(64 << 20) + 1, 1 << 31, (1 << 63) - 1])
async def test_a_body_beyond_the_limit_is_refused_by_its_head(
    site: GatewaySite, announced: int
) -> None:
    peer = await connect(site.http)
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % announced
    await peer.send(head + b"abc")
    status, body = await http_response(peer.reader)
    assert status == 400
    assert body.decode() == (
        f'{{"error":"request JSON size of {announced} bytes exceeds the maximum allowed input size'
        ' of 67108864 bytes. Use --http-max-input-size to increase the limit."}'
    )
    await serves(site.http, site.grpc)
    peer.writer.close()


# --- memory


@pytest.fixture
async def gateway() -> AsyncIterator[Measured]:
    async with measured("tests.support.gateway.gateway_echo_process") as process:
        await serves(*process.addresses)
        yield process


async def flood_http(address: str) -> None:
    """Ask for a MiB again and again, and read nothing."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(http_request("echo", bytes(MIB)))
    # The first response shows that the gateway is at work; nothing more is read.
    await asyncio.wait_for(reader.readexactly(12), LIMIT_S)
    with contextlib.suppress(TimeoutError):
        for _ in range(400):
            writer.write(http_request("echo", bytes(MIB)))
            # Held up for so long: the gateway has stopped reading.
            await asyncio.wait_for(writer.drain(), 1)
        raise AssertionError("the gateway read all 400 MiB, though its responses are not read")
    writer.transport.abort()


async def flood_grpc(address: str, path: str, *, blind: bool) -> None:
    peer = await connect(address)
    await peer.send(opening(1 << 30 if blind else 0, connection=1 << 30))
    sender, sent = Sender(peer, path, blind=blind), 0
    body = grpc_request("echo", bytes(MIB))
    with contextlib.suppress(NoWindowError):
        # A client that goes on without a window is disconnected.
        while sent < 400 and not peer.writer.transport.is_closing():
            sent += 1
            await sender.upload(2 * sent - 1, body)
    assert 64 < sent < 150
    peer.writer.close()


async def flood_stream(address: str) -> None:
    peer = await connect(address)
    await peer.send(opening(0, connection=1 << 30))
    sender, sent = Sender(peer, STREAM), 0
    await sender.open(1)
    with contextlib.suppress(NoWindowError):
        while sent < 400:
            sent += 1
            await sender.message(1, grpc_request("echo", bytes(MIB)))
    assert sent < 20
    peer.writer.close()


FLOODS: dict[str, Callable[[str, str], Coroutine[Any, Any, None]]] = {
    "HTTP": lambda http, _grpc: flood_http(http),
    "gRPC, no window": lambda _http, grpc: flood_grpc(grpc, UNARY, blind=False),
    "gRPC, an unread socket": lambda _http, grpc: flood_grpc(grpc, UNARY, blind=True),
    "gRPC, a stream": lambda _http, grpc: flood_stream(grpc),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_client_that_does_not_read_costs_bounded_memory(
    gateway: Measured, name: str
) -> None:
    before = gateway.peak_mib()
    flood = asyncio.ensure_future(FLOODS[name](*gateway.addresses))
    while not flood.done():
        await serves(*gateway.addresses)
    await flood
    await serves(*gateway.addresses)
    assert gateway.peak_mib() - before < 250


async def test_slow_silent_and_half_closed_connections_cost_no_worker(gateway: Measured) -> None:
    http, grpc = gateway.addresses
    files, before = gateway.open_files(), gateway.peak_mib()
    infer = [(name, UNARY if name == ":path" else value) for name, value in REQUEST]
    hold = grpc_request("hold", b"abc")
    asked = frame(HEADERS, END_HEADERS, 1, block(infer))
    huge = struct.pack(">BI", 0, (1 << 31) - 1)
    head = http_request("hold", b"abc")
    starts = {
        http: [
            b"",
            b"POST /v2/mod",
            head[:-30],
            head[:-1],
            head,
            head.replace(b"Content-Length: ", b"Content-Length: 2000"),
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\nx",
        ],
        grpc: [
            b"",
            PREFACE[:7],
            PREFACE + frame(SETTINGS)[:5],
            PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, block(infer)),
            PREFACE + frame(SETTINGS) + asked,
            PREFACE + frame(SETTINGS) + asked + frame(DATA, 0, 1, huge + b"x" * 99),
            PREFACE
            + frame(SETTINGS)
            + asked
            + frame(DATA, 1, 1, struct.pack(">BI", 0, len(hold)) + hold),
        ],
    }
    peers = []
    for address, kinds in starts.items():
        for each in range(700):
            peer = await connect(address)
            await peer.send(kinds[each % len(kinds)])
            if each % 3 == 0:
                peer.writer.write_eof()
            peers.append(peer)
    await serves(http, grpc)
    assert gateway.peak_mib() - before < 150
    for peer in peers:
        peer.writer.transport.abort()
    await until(lambda: gateway.open_files() <= files)
    await serves(http, grpc)


async def test_a_slow_request_is_ended_and_the_connection_with_it(gateway: Measured) -> None:
    """Even if it keeps sending: a head has to be complete in time."""
    peer = await connect(gateway.addresses[0])
    await peer.send(b"GET /v2/health/live HTTP/1.1\r\n")
    response = asyncio.ensure_future(http_response(peer.reader))
    async with asyncio.timeout(LIMIT_S):
        while not response.done():
            await peer.send(b"A: b\r\n")
            await asyncio.wait([response], timeout=0.05)
    status, body = await response
    assert (status, body) == (408, b'{"error":"the request did not arrive in time"}')
    peer.writer.close()
