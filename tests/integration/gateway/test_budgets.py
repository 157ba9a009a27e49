"""Clients that hold much, send slowly or do nothing: refused, while others are served."""

from __future__ import annotations

import asyncio
import gzip
import struct
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as grpcclient

from tests.integration.gateway.test_connections import ask, connect, greet, ready
from tests.support.gateway.gateway_site import gateway_site
from tests.support.rpc.raw_peer import DATA, END_HEADERS, HEADERS, REQUEST, block, frame
from tests.support.waiting import until

MIB = 1 << 20
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
READY = "/inference.GRPCInferenceService/ServerReady"
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT_S = 20


def unfinished(size: int) -> bytes:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    return head % (size + 1) + bytes(size)


async def test_unfinished_bodies_are_bounded_and_freed_when_they_are_aborted() -> None:
    async with gateway_site(max_pending_bytes=8 * MIB) as site:
        budget = site.service._budget
        writers = []
        responses = []
        for _ in range(6):
            reader, writer = await connect(site.http)
            writers.append(writer)
            writer.write(unfinished(2 * MIB))
            responses.append(asyncio.ensure_future(reader.read(4096)))
        # Half of the budget is the most that one client may hold: two bodies.
        done: set[Any] = set()
        while len(done) < 4:
            done, _ = await asyncio.wait(responses, timeout=LIMIT_S, return_when="FIRST_COMPLETED")
            await asyncio.sleep(0)
        for each in done:
            assert each.result().startswith(b"HTTP/1.1 503")
            assert b"unfinished requests" in each.result()
        assert budget.held_bytes <= 4 * MIB
        await ready(site)
        for each in responses:
            each.cancel()
        for writer in writers:
            writer.transport.abort()
        await until(lambda: budget.held_bytes == 0)


async def test_unfinished_messages_are_bounded() -> None:
    async with gateway_site(max_pending_bytes=8 * MIB) as site:
        budget = site.service._budget
        peer = await greet(site, 65_535)
        fields = [(name, STREAM if name == ":path" else value) for name, value in REQUEST]
        await peer.send(frame(HEADERS, END_HEADERS, 1, block(fields)))
        await peer.send(frame(DATA, 0, 1, struct.pack(">BI", 0, 100 * MIB)))
        for _ in range(12 * MIB // 16_384):
            await peer.send(frame(DATA, 0, 1, bytes(16_384)))
        _, _, _, trailers = await peer.next_of(HEADERS)
        assert b"unfinished requests" in trailers
        assert budget.held_bytes == 0
        await ready(site)
        peer.writer.close()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
async def test_the_largest_grpc_message(compression: grpc.Compression) -> None:
    async with (
        gateway_site(grpc_max_input_size=MIB) as site,
        grpc.aio.insecure_channel(site.grpc, compression=compression) as channel,
    ):
        infer: Any = channel.unary_unary(INFER)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(bytes(MIB + 1), timeout=LIMIT_S)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"larger than {MIB} bytes" in str(caught.value.details())


async def test_a_large_compressed_tensor_arrives_whole() -> None:
    async with (
        gateway_site() as site,
        grpcclient.InferenceServerClient(site.grpc) as client,
    ):
        values = np.arange(3_000_000, dtype=np.int32) % 1000
        tensor = grpcclient.InferInput("INPUT0", [values.size], "INT32")
        tensor.set_data_from_numpy(values)
        result = await client.infer("echo", [tensor], compression_algorithm="gzip")
        echoed = result.get_response().raw_output_contents[0]
        assert echoed == values.tobytes()


async def test_others_are_served_while_a_bomb_is_inflated() -> None:
    async with gateway_site(max_pending_bytes=256 * MIB) as site:
        bomb = gzip.compress(bytes(300 * MIB), 1)
        message = struct.pack(">BI", 1, len(bomb)) + bomb
        peer = await greet(site, 65_535)
        fields = [(name, INFER if name == ":path" else value) for name, value in REQUEST]
        fields.append(("grpc-encoding", "gzip"))
        await peer.send(frame(HEADERS, END_HEADERS, 1, block(fields)))
        for at in range(0, len(message), 16_384):
            await peer.send(frame(DATA, 0, 1, message[at : at + 16_384]))
        budget = site.service._budget
        await until(lambda: budget.held_bytes > 8 * MIB)
        reader, writer = await connect(site.http)
        for _ in range(5):
            assert (await ask(reader, writer))[0].startswith("HTTP/1.1 200")
        # In the end it is refused, at the limit of all clients.
        _, _, _, trailers = await peer.next_of(HEADERS)
        assert b"unfinished requests" in trailers
        assert budget.held_bytes == 0
        writer.close()
        peer.writer.close()


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


async def test_a_stream_keeps_its_connection() -> None:
    async with (
        gateway_site(grpc_idle_timeout_secs=0.2) as site,
        grpc.aio.insecure_channel(site.grpc) as channel,
    ):
        stream: Any = channel.stream_stream(STREAM)()
        server: Any = site.service._grpc
        await until(lambda: len(server._http2_protocols) == 1)
        (protocol,) = server._http2_protocols
        for _ in range(5):
            protocol.on_timer()
            await asyncio.sleep(0.1)
        assert not protocol.http2.control.draining
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@pytest.mark.parametrize("port", ["http", "grpc"])
async def test_one_client_has_a_limit_of_connections(
    port: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_site(max_connections_per_client=2) as site:
        address = getattr(site, port)
        ours = [await connect(address) for _ in range(2)]
        if port == "http":
            for each in ours:
                assert (await ask(*each))[0].startswith("HTTP/1.1 200")
        reader, writer = await connect(address)
        if port == "http":
            assert (await ask(reader, writer))[0].startswith("HTTP/1.1 503")
        else:
            async with asyncio.timeout(LIMIT_S):
                assert await reader.read() == b""
        assert "of 127.0.0.1: refusing the newest (--max-connections-per-client)" in caplog.text
        for _, opened in (*ours, (reader, writer)):
            opened.close()
