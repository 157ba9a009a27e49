"""What the proxy of `nereid adopt` makes of gRPC, beside a small service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import grpc
import pytest

from nereid.comparison.rules import parse_rules
from nereid.comparison.tally import TallyOptions
from nereid.pb import kserve_pb2
from nereid.rpc import RpcError, Server, SocketChannel, Status
from nereid_adopt.calls.kinds import MODEL_INFER
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.copies.process import CopyOptions
from nereid_adopt.running_proxy import Proxy
from tests.support.rpc.echo_service import BIG, Site

_NOBODY = "127.0.0.1:1"
_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
_LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
# One method goes the way of inferences, the other one that of unknown methods.
_WAYS = pytest.mark.parametrize("way", [MODEL_INFER, "/test/Echo"])


@asynccontextmanager
async def proxied(
    infer: str = "echo",
    max_held_bytes: int = 1 << 30,
    on_proxy: Callable[[Proxy], None] = lambda _: None,
) -> AsyncIterator[tuple[Site, str, SocketChannel]]:
    """Run a service and a proxy before it, and connect a client.

    infer: method of inferences. on_proxy: called with the proxy.
    """
    site = Site()
    handlers = site.handlers()
    unary = {**handlers.unary, MODEL_INFER: getattr(site, infer), _LOAD: getattr(site, infer)}
    streams = {**handlers.stream, _STREAM_INFER: site.chat}
    server = Server(replace(handlers, unary=unary, stream=streams))
    address = await server.listen("127.0.0.1:0")
    options = CopyOptions(
        (address, _NOBODY), (address, _NOBODY), parse_rules({}), TallyOptions(), 5
    )
    proxy = Proxy(
        options, max_queued_bytes=1 << 20, max_copied_bytes=64 << 20, max_held_bytes=max_held_bytes
    )
    on_proxy(proxy)
    _, port = await proxy.open("127.0.0.1:0", "127.0.0.1:0")
    channel = SocketChannel(port)
    try:
        async with asyncio.timeout(30):
            yield site, port, channel
    finally:
        await channel.close()
        await proxy.close()
        await server.close()


@_WAYS
async def test_messages_of_any_size_pass_both_ways(way: str) -> None:
    async with proxied() as (_, _, channel):
        for message in (b"", b"x", BIG):
            assert await channel.unary(way, message) == message
        messages = [b"%d" % number for number in range(200)]
        assert await asyncio.gather(*map(partial(channel.unary, way), messages)) == messages


async def test_metadata_status_and_trailers_pass() -> None:
    async with proxied(infer="refuse") as (_, _, channel):
        for way in (MODEL_INFER, "/test/Refuse"):
            with pytest.raises(RpcError) as raised:
                await channel.unary(way, b"", metadata=(("key", "value"), ("key-bin", b"\0\xff")))
            assert raised.value.status is Status.FAILED_PRECONDITION
            assert raised.value.message == "nicht möglich: 100 % ✓\n"
            assert dict(raised.value.trailers) == {"why": "because", "why-bin": b"\x00\xff"}


@_WAYS
async def test_request_metadata_passes(way: str) -> None:
    async with proxied() as (site, _, channel):
        await channel.unary(way, b"", metadata=(("key", "value"), ("key-bin", b"\0\xff")))
        assert dict(site.calls[0].metadata)["key-bin"] == b"\0\xff"
        assert dict(site.calls[0].metadata)["key"] == "value"


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    for way in (MODEL_INFER, "/test/Hold"):
        async with proxied(infer="hold") as (site, _, channel):
            call = asyncio.ensure_future(channel.unary(way, b""))
            await site.seen.wait()
            call.cancel()
            await site.cancelled.wait()


async def test_a_client_that_disconnects_cancels_its_calls() -> None:
    async with proxied(infer="hold") as (site, _, channel):
        call = asyncio.ensure_future(channel.unary(MODEL_INFER, b""))
        await site.seen.wait()
        await channel.close()
        await site.cancelled.wait()
        with pytest.raises(RpcError):
            await call


async def test_deadlines_are_the_servers() -> None:
    async with proxied(infer="hold") as (site, _, channel):
        with pytest.raises(RpcError, match="deadline"):
            await channel.unary(MODEL_INFER, b"", timeout_s=0.2)
        assert site.calls[0].deadline is not None


@pytest.mark.parametrize("path", ["/test/Chat", _STREAM_INFER])
async def test_streams_pass_message_by_message(path: str) -> None:
    async with proxied() as (_, _, channel):
        received: asyncio.Queue[bytes | None] = asyncio.Queue()
        closed: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
        stream = channel.stream(path, on_message=received.put_nowait, on_close=closed.set_result)
        for number in range(10):
            stream.send(b"%d" % number)
            assert await received.get() == b"%d" % number
        stream.send(BIG)
        assert await received.get() == BIG
        stream.half_close()
        assert await closed is None


async def test_a_server_without_anybody_is_unavailable() -> None:
    options = CopyOptions((_NOBODY,) * 2, (_NOBODY,) * 2, parse_rules({}), TallyOptions(), 5)
    proxy = Proxy(options, max_queued_bytes=0, max_copied_bytes=1000)
    _, port = await proxy.open("127.0.0.1:0", "127.0.0.1:0")
    channel = SocketChannel(port)
    try:
        for path in (MODEL_INFER, _STREAM_INFER, "/test/Echo"):
            with pytest.raises(RpcError, match="cannot be reached") as raised:
                await channel.unary(path, b"")
            assert raised.value.status is Status.UNAVAILABLE
        assert proxy.site.recorder.failures == 3
    finally:
        await channel.close()
        await proxy.close()


async def test_a_server_that_returns_is_used_again() -> None:
    handlers = Site().handlers()
    server = Server(handlers)
    address = await server.listen("127.0.0.1:0")
    options = CopyOptions(
        (address, _NOBODY), (address, _NOBODY), parse_rules({}), TallyOptions(), 5
    )
    proxy = Proxy(options, max_queued_bytes=1 << 20, max_copied_bytes=64 << 20)
    _, port = await proxy.open("127.0.0.1:0", "127.0.0.1:0")
    channel = SocketChannel(port)
    try:
        assert await channel.unary("/test/Echo", b"1") == b"1"
        await server.close()
        with pytest.raises(RpcError, match="cannot be reached"):
            await channel.unary("/test/Echo", b"2")
        server = Server(handlers)
        await server.listen(address)
        assert await channel.unary("/test/Echo", b"3") == b"3"
    finally:
        await channel.close()
        await proxy.close()
        await server.close()


async def test_another_client_library_is_served() -> None:
    gzip = grpc.Compression.Gzip
    async with (
        proxied() as (_, address, _),
        grpc.aio.insecure_channel(address, compression=gzip) as channel,
    ):
        call: Any = channel.unary_unary(MODEL_INFER)
        for message in (b"a" * 100_000, b""):
            assert await call(message) == message


async def test_a_server_that_closes_each_connection_is_unavailable() -> None:
    closed = 0

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        closed += 1
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = CopyOptions((address,) * 2, (address,) * 2, parse_rules({}), TallyOptions(), 5)
    proxy = Proxy(options, max_queued_bytes=0, max_copied_bytes=1000)
    _, port = await proxy.open("127.0.0.1:0", "127.0.0.1:0")
    channel = SocketChannel(port)
    try:
        async with asyncio.timeout(30):
            for path in (MODEL_INFER, _STREAM_INFER):
                with pytest.raises(RpcError) as raised:
                    await channel.unary(path, b"")
                assert raised.value.status is Status.UNAVAILABLE
        assert closed < 20
    finally:
        await channel.close()
        await proxy.close()
        server.close()


async def test_bytes_in_flight_are_bounded_and_released() -> None:
    proxies: list[Proxy] = []
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, held.size_bytes)

    async with proxied(max_held_bytes=3 << 20, on_proxy=proxies.append) as (_, _, channel):
        held = proxies[0].site.held_bytes
        bodies = [bytes([number]) * 1_000_000 for number in range(20)]
        calls = [asyncio.ensure_future(channel.unary(MODEL_INFER, body)) for body in bodies]
        while not all(call.done() for call in calls):
            await asyncio.sleep(0)
            watch()
        assert [call.result() for call in calls] == bodies
        assert 2_000_000 < most <= (3 << 20) + 40 * 16_384
        # Copies are recorded a moment after the responses.
        while held.size_bytes:
            await asyncio.sleep(0)
        # The connection serves on.
        assert await channel.unary(MODEL_INFER, b"small") == b"small"


async def test_a_cancelled_call_holds_nothing() -> None:
    proxies: list[Proxy] = []
    async with proxied(infer="hold", on_proxy=proxies.append) as (site, _, channel):
        held = proxies[0].site.held_bytes
        call = asyncio.ensure_future(channel.unary(MODEL_INFER, bytes(100_000)))
        await site.seen.wait()
        assert held.size_bytes > 100_000
        call.cancel()
        await site.cancelled.wait()
        while held.size_bytes:
            await asyncio.sleep(0)


@pytest.mark.usefixtures("_without_garbage_collection")
@pytest.mark.parametrize("way", [MODEL_INFER, _LOAD])
@pytest.mark.parametrize("max_held_bytes", [0, 1 << 20])
async def test_a_call_that_has_its_response_holds_nothing(way: str, max_held_bytes: int) -> None:
    proxies: list[Proxy] = []
    for infer in ("echo", "refuse"):
        async with proxied(infer, max_held_bytes, proxies.append) as (_, _, channel):
            for _ in range(2):
                with suppress(RpcError):
                    await channel.unary(way, bytes(100_000))
                # Copies are recorded a moment after the responses.
                async with asyncio.timeout(10):
                    while proxies[-1].site.held_bytes.size_bytes:
                        await asyncio.sleep(0)


def request(*, start: bool = False, sequence_id: int = 1) -> bytes:
    found = kserve_pb2.ModelInferRequest(model_name="m")
    if sequence_id:
        found.parameters["sequence_id"].int64_param = sequence_id
        found.parameters["sequence_start"].bool_param = start
    return found.SerializeToString()


async def test_only_a_sequence_with_copies_fails_over_after_its_start() -> None:
    proxies: list[Proxy] = []
    async with proxied(on_proxy=proxies.append) as (_, _, channel):
        site = proxies[0].site
        site.traffic.weight = 100
        numbers = count(1)
        for percent in (100.0, 0.0):
            site.traffic.copied_percent = percent
            for path in (MODEL_INFER, _STREAM_INFER):
                number = next(numbers)
                for start in (True, False):
                    step = SequenceStep("m", str(number), start=start, end=False)
                    if not start:
                        # So it was before the new server ended.
                        site.traffic.note_step(step, Side.NEW)
                    message = request(start=start, sequence_id=number)
                    if percent or start:
                        assert await channel.unary(path, message) == message
                        known = step._replace(start=False)
                        assert site.traffic.side_of_request(known) is Side.OLD
                    else:
                        with pytest.raises(RpcError, match="cannot be reached") as raised:
                            await channel.unary(path, message)
                        assert raised.value.status is Status.UNAVAILABLE
        assert (site.recorder.failovers, site.recorder.failures) == (6, 2)


async def test_inferences_without_copies_hold_no_response() -> None:
    proxies: list[Proxy] = []
    async with proxied(on_proxy=proxies.append) as (_, _, channel):
        site = proxies[0].site
        site.traffic.copied_percent = 0
        message = request(sequence_id=0)
        assert await channel.unary(MODEL_INFER, message) == message
        assert site.held_bytes.size_bytes == 0
        for _ in range(2):
            assert await channel.unary(_STREAM_INFER, message) == message
        assert (site.recorder.not_sampled, site.recorder.not_copied.total()) == (3, 0)
        assert site.recorder._waiting == []


async def test_sequences_of_a_stream_without_copies_are_known() -> None:
    """Their later requests find the server, and have no copies."""
    proxies: list[Proxy] = []
    async with proxied(on_proxy=proxies.append) as (_, _, channel):
        site = proxies[0].site
        site.traffic.copied_percent = 0
        received: asyncio.Queue[bytes | None] = asyncio.Queue()
        stream = channel.stream(
            _STREAM_INFER, on_message=received.put_nowait, on_close=lambda _: None
        )
        for message in (request(sequence_id=0), request(start=True), request()):
            stream.send(message)
            assert await received.get() == message
        assert site.traffic.open_sequences == (("m", "1"),)
        assert site.recorder.is_broken(SequenceStep("m", "1", start=False, end=False))
        stream.cancel()


@pytest.mark.usefixtures("_without_garbage_collection")
async def test_a_call_that_failed_over_holds_nothing() -> None:
    proxies: list[Proxy] = []
    async with proxied(on_proxy=proxies.append) as (_, _, channel):
        site = proxies[0].site
        site.traffic.weight = 100
        await channel.unary(MODEL_INFER, bytes(100_000))
        assert site.recorder.failovers == 1
        async with asyncio.timeout(10):
            while site.held_bytes.size_bytes:
                await asyncio.sleep(0)
