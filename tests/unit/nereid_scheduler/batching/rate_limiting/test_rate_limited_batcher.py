"""Model versions whose instances share resources: each scheduler, cancellations, deaths."""

import asyncio

import pytest

from nereid.model_config import RateLimit, ResourceNeed
from nereid_scheduler.batching.rate_limiting.rate_limited_batcher import RateLimitedRouter
from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.resources import Device, Resources
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.world import Stream, VersionWorld
from tests.support.waiting import until

DEVICE = Device("h", 0)
SCHEDULERS = (
    "",
    "dynamic_batching { }",
    "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000 }",
    "sequence_batching { direct { } }",
    "sequence_batching { oldest { max_candidate_sequences: 2 } }",
)


class Version(VersionWorld):
    def __init__(
        self,
        limiter: RateLimiter[RemoteInstance] | None,
        text: str = "",
        *,
        decoupled: bool = False,
    ) -> None:
        if decoupled:
            text += " model_transaction_policy { decoupled: true }"
        super().__init__("max_batch_size: 4 " + text, context=VersionContext(rate_limiter=limiter))
        self.limiter = limiter
        self.sequences = "sequence_batching" in text
        self.instances: list[tuple[RemoteInstance, Stream]] = []
        self.executions = 0

    def add(self) -> RemoteInstance:
        stream = Stream()
        instance = RemoteInstance(len(self.instances) + 1, "i", "executor", stream)
        if self.limiter is not None:
            limit = RateLimit((ResourceNeed("R", False, 1),), 1)
            self.limiter.add_instance(instance, limit, DEVICE)
        self.instances.append((instance, stream))
        self.model.pool.roster.add(instance)
        return instance

    def send(self, number: int) -> Entry:
        place = {"sequence_id": number, "sequence_start": True, "sequence_end": True}
        fields = {"parameters": place} if self.sequences else {}
        (entry,) = self.receive(number, accepts_many=self.model.decoupled, **fields)
        return entry

    @property
    def running(self) -> list[RemoteInstance]:
        return [instance for instance, _ in self.instances if instance.batches.first is not None]

    def execute(self) -> None:
        """All instances respond to the batches that they have."""
        for instance, stream in self.instances:
            if instance.batches.first is not None:
                self.executions += 1
                self.reply(instance, stream.sent[-1])


def limiter() -> RateLimiter[RemoteInstance]:
    return RateLimiter(Resources(), asyncio.get_running_loop().call_soon)


async def turns() -> None:
    """Requests of grants, grants, dispatch, and what follows."""
    for _ in range(12):
        await asyncio.sleep(0)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_one_of_all_instances_executes_at_a_time(scheduler: str) -> None:
    shared = limiter()
    versions = [Version(shared, scheduler), Version(shared, scheduler)]
    for version in versions:
        version.add()
        version.add()
        for number in range(1, 10):
            version.send(number)
    while any(len(version.responses) < 9 for version in versions):
        await until(lambda: versions[0].running or versions[1].running)
        assert len(versions[0].running) + len(versions[1].running) == 1
        for version in versions:
            version.execute()
    assert not any(each.error for version in versions for each in version.responses)
    await turns()
    assert not shared.holders()


async def test_a_grant_without_work_is_given_back() -> None:
    shared = limiter()
    busy, waiting = Version(shared), Version(shared)
    busy.add()
    waiting.add()
    busy.send(1)
    await turns()
    cancelled, expired = waiting.send(1), waiting.send(2)
    await turns()
    waiting.model.cancel(cancelled)
    waiting.model.cancel(expired)
    busy.execute()
    await turns()
    assert not shared.holders()
    busy.send(2)
    await turns()
    assert len(busy.running) == 1
    # Granted, and cancelled before its turn.
    entry = waiting.send(3)
    await turns()
    busy.execute()
    while shared.holders() != [waiting.instances[0][0]]:
        await asyncio.sleep(0)
    waiting.model.cancel(entry)
    assert not shared.holders()


async def test_nothing_is_held_while_a_batch_waits_to_grow() -> None:
    shared = limiter()
    hour_us = 3_600_000_000
    delay = f"max_queue_delay_microseconds: {hour_us} preferred_batch_size: [ 4 ]"
    delay = f"dynamic_batching {{ {delay} }}"
    growing, other = Version(shared, delay), Version(shared)
    growing.add()
    other.add()
    growing.send(1)
    await turns()
    assert not shared.holders()
    other.send(1)
    await turns()
    assert len(other.running) == 1
    for number in (2, 3, 4):
        growing.send(number)
    await turns()
    assert not growing.running
    other.execute()
    await turns()
    growing.execute()
    assert len(growing.responses) == 4
    assert growing.executions == 1


@pytest.mark.parametrize("decoupled", [False, True], ids=["single", "decoupled"])
async def test_a_lost_instance_releases_what_it_held(decoupled: bool) -> None:
    shared = limiter()
    dying, other = Version(shared, decoupled=decoupled), Version(shared)
    instance = dying.add()
    other.add()
    dying.send(1)
    await turns()
    other.send(1)
    await turns()
    assert (len(dying.running), len(other.running)) == (1, 0)
    instance.stream = None
    dying.model.pool.lose_instance(instance, "gone")
    await turns()
    assert len(other.running) == 1


async def test_an_instance_that_retires_holds_its_resources_until_it_has_executed() -> None:
    shared = limiter()
    leaving, other = Version(shared), Version(shared)
    instance, idle = leaving.add(), leaving.add()
    other.add()
    leaving.send(1)
    await turns()
    other.send(1)
    leaving.model.pool.roster.retire(instance)
    leaving.model.pool.roster.retire(idle)
    await turns()
    assert not other.running
    leaving.execute()
    await turns()
    assert len(other.running) == 1


async def test_without_a_limiter_there_is_nothing_of_it() -> None:
    it = Version(None)
    assert type(it.model.pool._router) is Router


def test_a_router_by_itself() -> None:
    scheduled: list[object] = []
    shared: RateLimiter[str] = RateLimiter(Resources(), scheduled.append)
    router = RateLimitedRouter(shared)
    assert router.acquire_instance() is None
    shared.add_instance("a", RateLimit((ResourceNeed("R", False, 1),), 1), DEVICE)
    router.add_instance("a")
    router.request_grants(lambda: True)
    scheduled.pop()()  # type: ignore[operator]
    assert router.is_free("a")
    assert router.acquire_instance() == "a"
    assert (router.free, list(shared.holders())) == (0, ["a"])
    router.release_instance("a")
    assert not shared.holders()
    # Removed between its request and its turn.
    router.request_grants(lambda: True)
    assert router.remove_instance("a")
    assert not shared.holders()
