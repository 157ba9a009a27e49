"""The scheduler over real sockets: a request in every phase of its life."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from nereid.core.messages import ErrorStatus, InferResponse, MovedResponse
from nereid.pb import nereid_pb2 as pb
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    LIMIT_S,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)

UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL, NOT_FOUND = 14, 4, 13, 5


async def test_requests_of_one_turn_share_batches_by_the_models_rules(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG + "dynamic_batching { }")
    async with world(tmp_path / "m") as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        futures = [gateway.send(request(n, n)) for n in range(7)]
        sizes: list[int] = []
        while sum(sizes) < 7:
            instance, batch = await executor.batch()
            sizes.append(len(batch.members))
            instance.response(batch)
        assert max(sizes) == 4
        responses = await asyncio.gather(*futures)
        assert [numbers_of(response)[0] for response in responses] == [0, 2, 4, 6, 8, 10, 12]


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


async def test_an_error_of_one_member_is_its_own(tmp_path: Path) -> None:
    add_model(tmp_path / "m", config=CONFIG + "dynamic_batching { }")
    async with world(tmp_path / "m") as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        good, bad = gateway.send(request(1, 1)), gateway.send(request(-1, 1))
        instance, batch = await executor.batch()
        assert len(batch.members) == 2
        instance.response(batch)
        assert numbers_of(await good) == [2, 2]
        assert error_status_of(await bad) == ErrorStatus(INTERNAL, "negative", True)


async def test_a_batch_of_a_broken_instance_runs_on_another(repository: Path) -> None:
    async with world(repository) as it:
        first = await it.executor("first", hold=True)
        await it.until_state("READY")
        gateway = await it.gateway()
        future = gateway.send(request(3, 4))
        instance, _ = await first.batch()
        second = await it.executor("second")
        await instance.die()
        assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [6, 8]
        assert second.seen == [[[3, 4]]]
        assert [len(each) for each in gateway.responses.values()] == [1]


async def test_an_executor_whose_control_stream_breaks_loses_its_instances(
    repository: Path,
) -> None:
    async with world(repository) as it:
        first = await it.executor("first", hold=True)
        gateway = await it.gateway()
        future = gateway.send(request(3, 4))
        instance, _ = await first.batch()
        await first.channel.close()
        # The scheduler ends the instance's stream, too: its response would be a second one.
        await asyncio.wait_for(instance.closed.wait(), LIMIT_S)
        await it.executor("second")
        assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [6, 8]


async def test_a_request_that_crashes_executors_fails(repository: Path) -> None:
    async with world(repository, max_retries=2) as it:
        gateway = await it.gateway()
        future = gateway.send(request(6, 6))
        for name in ("one", "two", "three"):
            executor = await it.executor(name, hold=True)
            await executor.batch()
            await executor.die()
        error_status = error_status_of(await asyncio.wait_for(future, LIMIT_S))
        assert error_status.code == UNAVAILABLE
        assert "was lost, 3 of 3 attempts" in error_status.message


async def test_without_an_executor_requests_wait_for_one(repository: Path) -> None:
    async with world(repository) as it:
        gateway = await it.gateway()
        future = gateway.send(request(1, 2))
        assert (await it.index())["doubler"] == ("LOADING", "")
        await it.executor()
        assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [2, 4]


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


async def test_a_deadline_ends_the_wait_in_the_queue(repository: Path) -> None:
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        running = gateway.send(request(1, 1))
        instance, batch = await executor.batch()
        error_status = error_status_of(await gateway.ask(2, 2, deadline=time.monotonic() + 0.05))
        assert error_status.code == DEADLINE_EXCEEDED
        instance.response(batch)
        assert numbers_of(await running) == [2, 2]
        assert executor.batches.empty()


async def test_a_request_cancelled_in_the_queue_never_runs(repository: Path) -> None:
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        first = gateway.send(request(1, 1))
        instance, batch = await executor.batch()
        gateway.send(request(2, 2))
        gateway.cancel()
        last = gateway.send(request(3, 3))
        await gateway.arrived()
        executor.hold = False
        instance.response(batch)
        assert numbers_of(await first) == [2, 2]
        assert numbers_of(await last) == [6, 6]
        assert executor.seen == [[[1, 1]], [[3, 3]]]
        assert 2 not in gateway.responses


@pytest.mark.parametrize("controls", [True, False])
async def test_a_request_cancelled_while_running_affects_no_batchmate(
    tmp_path: Path, controls: bool
) -> None:
    add_model(tmp_path / "m", config=CONFIG + "dynamic_batching { }")
    async with world(tmp_path / "m") as it:
        executor = await it.executor(hold=True, controls=controls)
        gateway = await it.gateway()
        mate = gateway.send(request(1, 1))
        gateway.send(request(2, 2))
        instance, batch = await executor.batch()
        assert len(batch.members) == 2
        gateway.cancel()
        after = gateway.send(request(3, 3))
        await gateway.arrived()
        if executor.controls is not None:
            # Models that accept controls are notified.
            control = await asyncio.wait_for(executor.controls.get(), LIMIT_S)
            assert control == (batch.id, 1, "CANCEL")
        executor.hold = False
        instance.response(batch)
        assert numbers_of(await mate) == [2, 2]
        assert numbers_of(await after) == [6, 6]
        assert sorted(gateway.responses) == [1, 3]


async def test_requests_of_a_disconnected_gateway_are_cancelled(repository: Path) -> None:
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        one, two = await it.gateway(), await it.gateway()
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
    repository: Path, defect: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        future = gateway.send(request(1, 1))
        instance, batch = await executor.batch()
        if defect == "garbage":
            instance.stream.send(b"\xff")
        else:
            instance.response(batch, skip=1)
        await it.executor("two")
        assert numbers_of(await asyncio.wait_for(future, LIMIT_S)) == [2, 2]
        assert len([line for line in caplog.messages if "broke the protocol" in line]) == 1


async def test_drain_finishes_accepted_requests_and_returns_others(repository: Path) -> None:
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        accepted = [gateway.send(request(n, n)) for n in (1, 2)]
        instance, batch = await executor.batch()
        assert it.service.ready
        draining = asyncio.create_task(it.service.drain(LIMIT_S))
        await asyncio.sleep(0)
        assert not it.service.ready
        assert isinstance(await gateway.ask(3, 3), MovedResponse)
        assert gateway.scheduler_leaving
        executor.hold = False
        instance.response(batch)
        assert [numbers_of(response)[0] for response in await asyncio.gather(*accepted)] == [2, 4]
        await asyncio.wait_for(draining, LIMIT_S)


async def test_drain_fails_what_executes_for_too_long_and_returns_what_waits(
    repository: Path,
) -> None:
    async with world(repository) as it:
        executor = await it.executor(hold=True)
        gateway = await it.gateway()
        running, queued = gateway.send(request(1, 1)), gateway.send(request(2, 2))
        await executor.batch()
        await gateway.arrived()
        await it.service.drain(0.05)
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


async def test_a_leaving_executor_finishes_its_batch_and_gets_no_other(repository: Path) -> None:
    async with world(repository) as it:
        leaver = await it.executor("leaver", hold=True)
        gateway = await it.gateway()
        first = gateway.send(request(1, 1))
        instance, batch = await leaver.batch()
        leaver.send(leaving=pb.Leaving())
        leaver.stream.half_close()
        await asyncio.wait_for(leaver.closed.wait(), LIMIT_S)
        second = gateway.send(request(2, 2))
        instance.response(batch)
        assert numbers_of(await asyncio.wait_for(first, LIMIT_S)) == [2, 2]
        assert leaver.batches.empty()
        await it.executor("other")
        assert numbers_of(await asyncio.wait_for(second, LIMIT_S)) == [4, 4]


async def test_bad_requests_get_their_errors_and_affect_no_other(repository: Path) -> None:
    async with world(repository) as it:
        await it.executor()
        await it.until_state("READY")
        gateway = await it.gateway()
        unknown = error_status_of(await gateway.ask(model="nope"))
        assert unknown[:3] == (NOT_FOUND, "Request for unknown model: 'nope' is not found", True)
        defect = ErrorStatus(INTERNAL, "failed to parse the request JSON buffer")
        assert error_status_of(await gateway.ask(error_status=defect)) == defect
        assert (
            error_status_of(await gateway.ask(model="nope", error_status=defect)).code == NOT_FOUND
        )
        assert error_status_of(await gateway.ask(head=b"\xff\xff")).code == INTERNAL
        assert "batch-size must be <= 4" in error_status_of(await gateway.ask(*range(10))).message
        assert numbers_of(await gateway.ask(1, 2)) == [2, 4]
