"""The scheduler over real sockets: a request in every phase of its life."""

import asyncio
from pathlib import Path

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse, MovedResponse
from nereid.pb import nereid_pb2 as pb
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    World,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)

UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL, NOT_FOUND = 14, 4, 13, 5


async def test_two_gateways_share_a_batch_and_each_gets_its_own_response(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG + "dynamic_batching { }")
    async with world(tmp_path / "m") as it:
        executor = await it.executor(hold=True)
        one, two = await it.gateway(), await it.gateway()
        first = one.send(request(0, 0))
        blocker = await executor.batch()
        mine, yours = one.send(request(1, 1)), two.send(request(2, 2))
        await one.arrived()
        await two.arrived()
        blocker[0].response(blocker[1])
        instance, batch = await executor.batch()
        assert len(batch.members) == 2
        instance.response(batch)
        assert numbers_of(await first) == [0, 0]
        assert numbers_of(await mine) == [2, 2]
        assert numbers_of(await yours) == [4, 4]


async def test_an_executor_whose_control_stream_breaks_loses_its_instances(
    mesh: World,
) -> None:
    first, gateway = await mesh.pair("first", hold=True)
    future = gateway.send(request(3, 4))
    instance, _ = await first.batch()
    await first.channel.close()
    # The scheduler ends the instance's stream, too: its response would be a second one.
    await asyncio.wait_for(instance.closed.wait(), LIMIT_S)
    await mesh.executor("second")
    assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [6, 8]


async def test_requests_wait_for_an_executor_for_a_limited_time(repository: Path) -> None:
    async with world(repository, no_executor_timeout_secs=0.05) as it:
        gateway = await it.gateway()
        never_loaded = error_status_of(await gateway.ask(1, 2))
        assert never_loaded.code == UNAVAILABLE
        assert never_loaded.message == "model 'doubler' is being loaded; waited 0.05 s for it"
        executor = await it.executor()
        await it.until_state("READY")
        await executor.die()
        error_status = error_status_of(await gateway.ask(1, 2))
        assert error_status.code == UNAVAILABLE
        assert error_status.message == (
            "no executor has model 'doubler' version 1; waited 0.05 s for one"
        )


async def test_requests_of_a_disconnected_gateway_are_cancelled(mesh: World) -> None:
    executor = await mesh.executor(hold=True)
    one, two = await mesh.gateway(), await mesh.gateway()
    one.send(request(1, 1))
    instance, batch = await executor.batch()
    one.send(request(2, 2))
    await one.arrived()
    one.link.close()
    await one.channel.close()
    mine = two.send(request(3, 3))
    executor.hold = False
    instance.response(batch)
    assert numbers_of(await asyncio.wait_for(mine, LIMIT_S)) == [6, 6]
    assert executor.seen == [[[1, 1]], [[3, 3]]]


@pytest.mark.parametrize("defect", ["a response too few", "garbage"])
async def test_what_breaks_the_protocol_ends_its_stream_and_costs_no_request(
    mesh: World, defect: str, caplog: pytest.LogCaptureFixture
) -> None:
    executor, gateway = await mesh.pair(hold=True)
    future = gateway.send(request(1, 1))
    instance, batch = await executor.batch()
    if defect == "garbage":
        instance.stream.send(b"\xff")
    else:
        instance.response(batch, skip=1)
    await mesh.executor("two")
    assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [2, 2]
    assert len([line for line in caplog.messages if "broke the protocol" in line]) == 1


async def test_drain_finishes_accepted_requests_and_returns_others(mesh: World) -> None:
    executor, gateway = await mesh.pair(hold=True)
    accepted = [gateway.send(request(n, n)) for n in (1, 2)]
    instance, batch = await executor.batch()
    assert mesh.service.ready
    draining = asyncio.create_task(mesh.service.drain(LIMIT_S))
    await asyncio.sleep(0)
    assert not mesh.service.ready
    assert isinstance(await gateway.ask(3, 3), MovedResponse)
    assert gateway.scheduler_leaving
    executor.hold = False
    instance.response(batch)
    assert [numbers_of(response)[0] for response in await asyncio.gather(*accepted)] == [2, 4]
    await asyncio.wait_for(draining, LIMIT_S)


async def test_drain_fails_what_executes_for_too_long_and_returns_what_waits(
    mesh: World,
) -> None:
    executor, gateway = await mesh.pair(hold=True)
    running, queued = gateway.send(request(1, 1)), gateway.send(request(2, 2))
    await executor.batch()
    await gateway.arrived()
    await mesh.service.drain(0.05)
    responses = [await asyncio.wait_for(each, LIMIT_S) for each in (running, queued)]
    assert error_status_of(responses[0]).code == UNAVAILABLE
    assert [isinstance(each, MovedResponse) for each in responses] == [False, True]


@pytest.mark.parametrize("sequences", [True, False])
async def test_drain_does_not_wait_for_what_cannot_run(tmp_path: Path, sequences: bool) -> None:
    """A sequence that waits for the slot of another, which goes on elsewhere; and a request for a
    model that no executor has.
    """
    batching = "sequence_batching { oldest { max_candidate_sequences: 1 } } " if sequences else ""
    add_model(tmp_path / "m", config=CONFIG + batching)
    async with world(tmp_path / "m") as it:
        gateway = await it.gateway()
        waiting: list[asyncio.Future[InferResponse]] = []
        if sequences:
            executor = await it.executor(hold=True)
            one, two = (
                {"sequence_id": number, "sequence_start": True, "sequence_end": False}
                for number in (1, 2)
            )
            begun = gateway.send(request(1, 1, parameters=one))
            instance, batch = await executor.batch()
            waiting.append(gateway.send(request(2, 2, parameters=two)))
            waiting.append(gateway.send(request(3, 3, parameters={**two, "sequence_start": False})))
            await gateway.arrived()
            instance.response(batch)
            assert numbers_of(await begun) == [2, 2]
        else:
            executor = await it.executor()
            assert numbers_of(await gateway.ask(1, 1)) == [2, 2]
            executor.send(leaving=pb.Leaving())
            executor.stream.half_close()
            await asyncio.wait_for(executor.closed.wait(), LIMIT_S)
            waiting.append(gateway.send(request(1, 1)))
            await gateway.arrived()
        await asyncio.wait_for(it.service.drain(10 * LIMIT_S), LIMIT_S)
        for each in waiting:
            assert isinstance(await asyncio.wait_for(each, LIMIT_S), MovedResponse)


async def test_bad_requests_get_their_errors_and_affect_no_other(mesh: World) -> None:
    await mesh.executor()
    await mesh.until_state("READY")
    gateway = await mesh.gateway()
    unknown = error_status_of(await gateway.ask(model="nope"))
    assert unknown[:3] == (NOT_FOUND, "Request for unknown model: 'nope' is not found", True)
    defect = ErrorStatus(INTERNAL, "failed to parse the request JSON buffer")
    assert error_status_of(await gateway.ask(error_status=defect)) == defect
    assert error_status_of(await gateway.ask(model="nope", error_status=defect)).code == NOT_FOUND
    assert error_status_of(await gateway.ask(head=b"\xff\xff")).code == INTERNAL
    assert "batch-size must be <= 4" in error_status_of(await gateway.ask(*range(10))).message
    assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
