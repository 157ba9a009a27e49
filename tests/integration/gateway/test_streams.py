"""ModelStreamInfer through real sockets."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import grpc.aio
import pytest

from nereid_gateway.fronts.grpc import infer_stream
from tests.support.gateway.gateway_site import GatewaySite
from tests.support.gateway.gateway_streams import opened, read_replies, request, write

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_the_end_of_a_stream_cancels_its_requests(
    site: GatewaySite, channel: grpc.aio.Channel, how: str
) -> None:
    call = opened(channel, timeout_s=20 if how == "cancel" else 0.3)
    await write(call, request("hold", "1"), request("echo", "2"), request("hold", "3"))
    held = [await site.scheduler.next_held() for _ in range(2)]
    if how == "cancel":
        call.cancel()
    else:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    gone = {await asyncio.wait_for(site.scheduler.cancelled.get(), 5) for _ in held}
    assert gone == {each.id for each in held}


async def test_ended_requests_leave_nothing_to_the_garbage_collector(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    """It runs too rarely for the tensors of a few large ones."""
    gc.collect()
    gc.disable()
    try:
        call = opened(channel)
        await write(call, request("echo", "1"), request("nope", "2"), request("hold", "3"))
        assert [each[1] for each in await read_replies(call, 2)] == ["1", "2"]
        await site.scheduler.next_held()
        call.cancel()
        await asyncio.wait_for(site.scheduler.cancelled.get(), 5)
        ended = [each for each in gc.get_objects() if type(each) is infer_stream._StreamRequest]
        assert ended == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("value", "ends"), [("true", True), ("false", False), ("True", False), ("1", False)]
)
async def test_failures_as_the_status_of_the_call(
    site: GatewaySite, channel: grpc.aio.Channel, value: str, ends: bool
) -> None:
    call = opened(channel, ("triton_grpc_error", value))
    # An error that is found before a request is accepted never ends the stream.
    await write(call, request("nope", "1"))
    assert [each[1] for each in await read_replies(call, 1)] == ["1"]
    await write(call, request("hold", "2"), request("fail", "3"))
    held = await site.scheduler.next_held()
    if ends:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code().name, caught.value.details()) == ("INTERNAL", "asked to fail")
        assert await asyncio.wait_for(site.scheduler.cancelled.get(), 5) == held.id
    else:
        site.scheduler.link.send(site.scheduler.echo(held))
        assert [each[0] for each in await read_replies(call, 2)] == ["", "asked to fail"]
        call.cancel()


async def test_an_unreadable_message_ends_the_stream_after_pending_requests(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    call = opened(channel)
    await write(call, request("hold", "1"), b"\xff\xff\xff", request("echo", "2"))
    site.scheduler.link.send(site.scheduler.echo(await site.scheduler.next_held()))
    assert [each[1] for each in await read_replies(call, 1)] == ["1"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "Unable to parse request"


async def test_a_draining_server_finishes_pending_requests_and_ends_its_streams(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    idle, busy = opened(channel), opened(channel)
    await write(idle, request("echo", "1"))
    await read_replies(idle, 1)
    await write(busy, request("hold", "2"))
    held = await site.scheduler.next_held()
    drained = asyncio.ensure_future(site.service.drain(5))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await idle.read()
    assert (caught.value.code().name, caught.value.details()) == ("UNAVAILABLE", SHUTTING_DOWN)
    site.scheduler.link.send(site.scheduler.echo(held))
    assert [each[1] for each in await read_replies(busy, 1)] == ["2"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await busy.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(drained, 5)


async def written_until_stuck(call: Any, item: Any, most: int) -> int:
    """How many items could be written before no more were taken for a while."""
    for count in range(most):
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(call.write(item))), 1)
        except TimeoutError:
            return count
    return most


async def test_a_client_that_does_not_read_is_not_read_from(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    call = opened(channel, timeout_s=60)
    # Half a megabyte each: what the client's windows and ours take is a few of them.
    item = request("echo", "x", bytes(1 << 19)).SerializeToString()
    assert await written_until_stuck(call, item, 400) < 400
    assert len(site.scheduler.received) < 400
    # Others go on meanwhile; and so does this one as soon as it reads.
    other = opened(channel)
    await write(other, request("echo", "1"))
    assert [each[1] for each in await read_replies(other, 1)] == ["1"]
    other.cancel()
    assert {each[1] for each in await read_replies(call, len(site.scheduler.received))} == {"x"}
    call.cancel()


async def test_reading_resumes_below_half_of_the_bound(
    site: GatewaySite, channel: grpc.aio.Channel
) -> None:
    call = opened(channel, timeout_s=60)
    bound = infer_stream.MAX_PENDING
    await write(call, *[request("hold", "x").SerializeToString()] * (bound + 1))
    held = [await site.scheduler.next_held() for _ in range(bound)]
    for each in held[: bound // 2]:
        assert site.scheduler.held.empty()
        site.scheduler.link.send(site.scheduler.echo(each))
    site.scheduler.link.send(site.scheduler.echo(held[bound // 2]))
    assert (await site.scheduler.next_held()) is not None
    call.cancel()
