"""The gateway under thousands of clients, and under one who announces too much."""

from __future__ import annotations

import asyncio
import struct

import hpack
import pytest

from nereid.pb import kserve_pb2
from nereid.rpc import SocketChannel
from tests.support.gateway.gateway_http import read_response
from tests.support.gateway.gateway_site import EchoScheduler, GatewaySite
from tests.support.rpc.http2_frames import DATA, HEADERS, frame
from tests.support.rpc.windowed_sender import Sender, connect, opening
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 60
UNARY = "/inference.GRPCInferenceService/ModelInfer"
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
        head, body = await read_response(peer.reader)
        assert (head[:13], body[-3:]) == (b"HTTP/1.1 200 ", b"abc")
    peer.writer.close()


async def respond_to_all(scheduler: EchoScheduler, count: int) -> None:
    """In the reverse of their order."""
    held = [await scheduler.next_held() for _ in range(count)]
    for item in reversed(held):
        scheduler.link.send(scheduler.echo(item))


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


async def test_thousands_of_http_connections(site: GatewaySite) -> None:
    peers = [await connect(site.http) for _ in range(2000)]
    for each, peer in enumerate(peers):
        await peer.send(http_request("hold", b"%d" % each))
    await until(lambda: site.scheduler.held.qsize() == 2000)
    await serves(site.http, site.grpc)
    await respond_to_all(site.scheduler, 2000)
    for each, peer in enumerate(peers):
        head, body = await read_response(peer.reader)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body.endswith(b"}%d" % each)
        peer.writer.close()


async def test_a_message_beyond_what_protobuf_can_hold_is_refused_by_its_head(
    site: GatewaySite,
) -> None:
    """The limit is 2 GiB less a byte, as gRPC's; the rest of a larger one is not waited for."""
    peer = await connect(site.grpc)
    await peer.send(opening(65_535))
    sender = Sender(peer, UNARY)
    for stream, size in ((1, (1 << 31) - 1), (3, 1 << 31)):
        await sender.open(stream)
        await peer.send(frame(DATA, 0, stream, struct.pack(">BI", 0, size) + b"abc"))
    _, _, stream, payload = await peer.next_of(HEADERS)
    headers = {str(name): str(value) for name, value in hpack.Decoder().decode(payload)}
    assert (stream, headers["grpc-status"]) == (3, "8")
    await serves(site.http, site.grpc)
    peer.writer.close()
