"""Resources, passive instances and names in two repositories, over real sockets."""

import asyncio
from pathlib import Path

import pytest

from nereid.rpc import RpcError, Status
from nereid_scheduler.core.resources import ResourceLimit
from tests.support.scheduler.scheduler_world import (
    CONFIG,
    add_model,
    error_status_of,
    numbers_of,
    request,
    world,
)
from tests.support.waiting import until

TWO_RS = CONFIG.replace(
    "kind: KIND_CPU", 'kind: KIND_CPU rate_limiter { resources { name: "R" count: 2 } }'
)
GLOBAL = TWO_RS.replace("count: 2", "count: 2 global: true")
LIMITED = {"rate_limit": "execution_count"}


async def test_models_of_two_executors_share_the_resources_of_their_device(tmp_path: Path) -> None:
    add_model(tmp_path / "m", "one", TWO_RS)
    add_model(tmp_path / "m", "two", TWO_RS)
    async with world(tmp_path / "m", **LIMITED) as it:
        executors = [await it.executor(name, hold=True) for name in ("x", "y")]
        for name in ("one", "two"):
            await it.until_state("READY", name)
        gateway = await it.gateway()
        waiting = [gateway.send(request(1, 2, model=name)) for name in ("one", "two", "one")]
        await gateway.arrived()
        for left in (2, 1, 0):
            await until(lambda: not all(executor.batches.empty() for executor in executors))
            (executor,) = (each for each in executors if not each.batches.empty())
            assert executor.batches.qsize() == 1
            instance, batch = executor.batches.get_nowait()
            if left == 2:
                # It dies: its batch runs elsewhere, with what it held.
                await executor.die()
                executors.remove(executor)
                instance, batch = await executors[0].batch()
            instance.response(batch)
            while sum(not each.done() for each in waiting) > left:
                await asyncio.sleep(0)
        assert [numbers_of(each.result()) for each in waiting] == [[2, 4]] * 3


@pytest.mark.parametrize(
    ("first", "second", "flags", "reason"),
    [
        (CONFIG, TWO_RS, ("R:1",), 'Resource count for "R" is limited to 1 which will prevent'),
        (GLOBAL, TWO_RS, (), 'Resource "R" is present as both global and device-specific'),
    ],
    ids=["too-few", "both"],
)
async def test_what_could_never_run_is_not_loaded(
    tmp_path: Path, first: str, second: str, flags: tuple[str, ...], reason: str
) -> None:
    add_model(tmp_path / "m", "first", first)
    add_model(tmp_path / "m", "second", second)
    limits = tuple(map(ResourceLimit.parse, flags))
    async with world(tmp_path / "m", **LIMITED, rate_limit_resource=limits) as it:
        await it.executor()
        await it.until_state("READY", "first")
        await it.until_state("UNAVAILABLE", "second")
        assert (await it.index())["second"][1].startswith(f"Invalid argument: {reason}")


async def test_passive_instances_are_loaded_and_get_no_requests(tmp_path: Path) -> None:
    passive = CONFIG.replace("count: 1", "count: 2 passive: true")
    add_model(tmp_path / "m", "idle", passive)
    both = passive.replace("kind: KIND_CPU }", "kind: KIND_CPU }, { count: 1 kind: KIND_CPU }")
    add_model(tmp_path / "m", "both", both)
    async with world(tmp_path / "m", no_executor_timeout_secs=3600.0) as it:
        executor = await it.executor()
        for name in ("idle", "both"):
            await it.until_state("READY", name)
        assert len(executor.instances) == 5
        gateway = await it.gateway()
        error_status = error_status_of(await gateway.ask(1, 2, model="idle"))
        assert (
            error_status.message == "model 'idle' has only passive instances, which get no requests"
        )
        for _ in range(6):
            assert numbers_of(await gateway.ask(1, 2, model="both")) == [2, 4]
        assert {each.load.instance_name for each in executor.instances} == {
            "idle_0_0", "idle_0_1", "both_0_0", "both_0_1", "both_1_0"
        }  # fmt: skip


async def test_a_name_in_two_repositories_is_served_by_neither(tmp_path: Path) -> None:
    for repository, names in (("a", ("m", "u")), ("b", ("m", "v"))):
        for name in names:
            add_model(tmp_path / repository, name)
    why = ("UNAVAILABLE", "model appears in two or more repositories")
    explicit = {"model_control_mode": "explicit"}
    async with world(tmp_path / "a", tmp_path / "b", **explicit) as it:
        await it.executor()

        assert await it.index() == {"m": why, "u": ("", ""), "v": ("", "")}
        with pytest.raises(RpcError) as refused:
            await it.load("m")
        text = f"failed to load 'm', failed to poll from model repository: {why[1]}"
        assert (refused.value.status, refused.value.message) == (Status.INTERNAL, text)
        await it.load("u")
        gateway = await it.gateway()
        unknown = error_status_of(await gateway.ask(1, 2, model="m")).message
        assert unknown == "Request for unknown model: 'm' is not found"
        (tmp_path / "b" / "m").rename(tmp_path / "kept")
        await it.load("m")
        assert (await it.index())["m"] == ("READY", "")
        # What is loaded is still served when the other one is back, though the index shows why it
        # cannot be loaded any more.
        (tmp_path / "kept").rename(tmp_path / "b" / "m")
        assert (await it.index())["m"] == why
        with pytest.raises(RpcError, match="failed to poll"):
            await it.load("m")
        assert numbers_of(await gateway.ask(1, 2, model="m")) == [2, 4]
