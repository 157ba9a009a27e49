"""Connections that cost the gateway: too many, too idle, too slow, or with too much to say."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient
import tritonclient.http.aio as httpclient

from nereid.pb import kserve_pb2
from tests.support.gateway.gateway_http import BODY, FLOATS, read_response
from tests.support.gateway.gateway_http import INFER as INFER_TARGET
from tests.support.gateway.gateway_site import GatewaySite, gateway_site
from tests.support.rpc import windowed_sender as sender
from tests.support.rpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    frame,
    message,
    to,
)
from tests.support.rpc.raw_peer import block
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LIMIT_S = 10
READY = "/inference.GRPCInferenceService/ServerReady"
INFER = "/inference.GRPCInferenceService/ModelInfer"
BIG = np.zeros(6_000_000, np.float32)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 12)


async def ready(site: GatewaySite) -> None:
    async with httpclient.InferenceServerClient(site.http) as client:
        assert await client.is_server_ready()
    async with grpcclient.InferenceServerClient(site.grpc) as client:
        assert await client.is_server_ready()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    """The head and body of the response."""
    writer.write(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
    return await read_response(reader)


async def test_http_connections_beyond_the_limit_get_503(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway_site(max_connections=2) as site:
        ours = [await connect(site.http) for _ in range(2)]
        for each in ours:
            assert (await ask(*each))[0].startswith(b"HTTP/1.1 200")
        reader, writer = await connect(site.http)
        head, body = await ask(reader, writer)
        assert head.startswith(b"HTTP/1.1 503")
        assert b"Connection: close" in head
        assert b"Retry-After: " in head
        assert json.loads(body) == {"error": "the server has too many connections"}
        assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
        writer.close()
        # Many silent ones are not kept open either.
        crowd = [await connect(site.http) for _ in range(80)]
        await until(lambda: site.service._http.connections <= 66)
        assert "more than 2 HTTP connections" in caplog.text
        for each in ours:
            assert (await ask(*each))[0].startswith(b"HTTP/1.1 200")
        for _, other in (*crowd, ours[0]):
            other.close()
        await until(lambda: site.service._http.connections == 1)
        another = await connect(site.http)
        assert (await ask(*another))[0].startswith(b"HTTP/1.1 200")
        for _, other in (another, ours[1]):
            other.close()


@pytest.mark.parametrize("port", ["http", "grpc"])
async def test_no_connection_waits_for_more_than_its_turn(port: str) -> None:
    """While one waits for a response, each of the others gets one."""
    clients, each_sends = 200, 5
    waits: list[int] = []

    async def client(responses: AsyncGenerator[None]) -> None:
        before = 0
        async for _ in responses:
            waits.append(len(waits) - before)
            before = len(waits)
            if before >= clients * each_sends:
                break
        await responses.aclose()

    async with gateway_site() as site, asyncio.timeout(6 * LIMIT_S):
        infer = infer_by_http if port == "http" else infer_by_grpc
        await asyncio.gather(*(client(infer(getattr(site, port))) for _ in range(clients)))
    assert max(waits) <= clients + clients // 4


async def infer_by_http(address: str) -> AsyncGenerator[None]:
    """One connection's requests, one after the other; goes on at each response."""
    reader, writer = await connect(address)
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with contextlib.closing(writer):
        while True:
            writer.write(head % (INFER_TARGET.encode(), len(BODY)) + BODY)
            assert (await read_response(reader))[0].startswith(b"HTTP/1.1 200")
            yield


async def infer_by_grpc(address: str) -> AsyncGenerator[None]:
    """Likewise."""
    request = kserve_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[FLOATS])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[2])
    content = message(request.SerializeToString())
    peer = await sender.connect(address)
    with contextlib.closing(peer.writer):
        await peer.send(sender.opening(1 << 20))
        for stream in itertools.count(1, 2):
            headers = frame(HEADERS, END_HEADERS, stream, block(to(INFER)))
            await peer.send(headers + frame(DATA, END_STREAM, stream, content))
            # The response's, and its trailers.
            await peer.expect(HEADERS)
            await peer.expect(HEADERS)
            yield


async def test_an_http_client_that_does_not_read_is_disconnected() -> None:
    async with gateway_site(write_timeout_secs=0.3) as site:
        header = json.dumps(
            {
                "inputs": [
                    {
                        "name": "INPUT0",
                        "shape": [BIG.size],
                        "datatype": "FP32",
                        "parameters": {"binary_data_size": BIG.nbytes},
                    }
                ],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
            }
        ).encode()
        reader, writer = await connect(site.http)
        writer.write(
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            % (len(header), len(header) + BIG.nbytes)
            + header
            + BIG.tobytes()
        )
        connections = site.service._http._connections
        await until(lambda: any(each.unsent_bytes for each in connections))
        await ready(site)
        await until(lambda: not connections)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(BIG.nbytes)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await ready(site)


def infer_message() -> bytes:
    tensor = grpcclient.InferInput("INPUT0", [BIG.size], "FP32")
    tensor.set_data_from_numpy(BIG)
    request = grpcclient._get_inference_request(
        model_name="echo", inputs=[tensor], model_version="", request_id="", outputs=None,
        sequence_id=0, sequence_start=False, sequence_end=False, priority=0, timeout=None,
        parameters=None,
    )  # fmt: skip
    text: bytes = request.SerializeToString()
    return text


async def test_a_grpc_client_that_does_not_read_is_disconnected() -> None:
    async with gateway_site(write_timeout_secs=0.3) as site:
        peer = await sender.connect(site.grpc)
        await peer.send(sender.opening(0x7FFFFFFF, connection=0x7FFF0000 - 65_535))
        await sender.Sender(peer, INFER).upload(1, infer_message())
        shells = site.service._grpc._http2_protocols  # type: ignore[union-attr]
        await until(lambda: any(each.writer._paused for each in shells))
        await ready(site)
        await until(lambda: not shells)
        peer.writer.close()
        with contextlib.suppress(ConnectionError):
            await peer.writer.wait_closed()


async def test_a_grpc_request_that_never_ends_is_reset_alone() -> None:
    async with gateway_site(http_request_timeout_secs=0.3) as site:
        peer = await sender.connect(site.grpc)
        await peer.send(
            sender.opening(65_535),
            frame(HEADERS, END_HEADERS, 1, block(to(INFER))),
            frame(DATA, 0, 1, message(bytes(1000))[:500]),
        )
        await peer.expect_reset(1, 0)
        await ready(site)
        peer.writer.close()
        await peer.writer.wait_closed()


async def test_an_idle_grpc_connection_is_ended_and_its_client_connects_again() -> None:
    async with (
        gateway_site(grpc_idle_timeout_secs=0.2) as site,
        grpc.aio.insecure_channel(site.grpc) as channel,
    ):
        call: Any = channel.unary_unary(READY)
        assert await call(b"", timeout=LIMIT_S) == b"\x08\x01"
        server: Any = site.service._grpc
        await until(lambda: not server._http2_protocols)
        assert await call(b"", timeout=LIMIT_S) == b"\x08\x01"
        assert len(server._http2_protocols) == 1


@pytest.mark.parametrize("port", ["http", "grpc"])
async def test_one_client_has_a_limit_of_connections(
    port: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_site(max_connections_per_client=2) as site:
        address = getattr(site, port)
        ours = [await connect(address) for _ in range(2)]
        if port == "http":
            for each in ours:
                assert (await ask(*each))[0].startswith(b"HTTP/1.1 200")
        reader, writer = await connect(address)
        if port == "http":
            assert (await ask(reader, writer))[0].startswith(b"HTTP/1.1 503")
        else:
            async with asyncio.timeout(LIMIT_S):
                assert await reader.read() == b""
        assert "of 127.0.0.1: refusing the newest (--max-connections-per-client)" in caplog.text
        for _, opened in (*ours, (reader, writer)):
            opened.close()
