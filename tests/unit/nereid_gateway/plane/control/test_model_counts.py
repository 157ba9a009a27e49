"""Pages of counters that a gateway completes with what schedulers have counted that are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from nereid.core.errors import Unavailable
from nereid.core.methods import SCHEDULER
from nereid.observability.counts.count_exchange import CountSource
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.process.gateway_group import GatewayGroup
from nereid.rpc import Handlers, RpcError, Status
from nereid_gateway.plane.control.control import Control
from nereid_gateway.plane.control.model_counts import ModelCounts
from tests.support.rpc.local_channel import LocalChannel

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.rpc import Call, Channel

_PAGE = """# HELP nv_inference_count x
# TYPE nv_inference_count counter
nv_inference_count{{model="m",version="1"}} {}
"""


class Scheduler:
    """A mesh's only one, which serves m and is replaced when it is killed."""

    def __init__(self) -> None:
        self.number = 0
        self.looks = 0
        # Killed when it has shown so many pages.
        self.lives: list[int] = []
        self.supported = True
        # By which statistics show m.
        self.names = ["m"]
        self.restart()
        paths = {
            "Metrics": self._metrics,
            "ModelStatistics": self._statistics,
            "Counts": self._counts,
        }
        handlers: dict[str, Any] = {SCHEDULER + name: each for name, each in paths.items()}
        self._channel = LocalChannel(Handlers(async_unary=handlers))

    def channels(self) -> list[Channel]:
        return [self._channel]

    def restart(self) -> None:
        self.number += 1
        self.source = CountSource(self.number)
        self.counted = 0
        self.count(0)

    def count(self, more: int) -> None:
        self.counted += more
        record = pb.VersionCounts(
            id=self.number,
            model="m",
            version="1",
            loaded_ns=self.number,
            continues=True,
            number=self.counted,
            exposition=_PAGE.format(self.counted).encode(),
            statistics=self._m("m"),
        )
        self.source.store.add(record)

    def _m(self, name: str) -> kserve_pb2.ModelStatistics:
        return kserve_pb2.ModelStatistics(name=name, version="1", inference_count=self.counted)

    def _end_of_life(self) -> None:
        if self.lives:
            self.lives[0] -= 1
            if not self.lives[0]:
                del self.lives[0]
                self.restart()

    async def _metrics(self, _: Call, __: bytes) -> bytes:
        page = pb.MetricsResponse(exposition=_PAGE.format(self.counted).encode())
        self._end_of_life()
        return page.SerializeToString()

    async def _statistics(self, _: Call, __: bytes) -> bytes:
        page = kserve_pb2.ModelStatisticsResponse(model_stats=map(self._m, self.names))
        for each in page.model_stats:
            each.memory_usage.add(type="GPU", byte_size=7)
        self._end_of_life()
        return page.SerializeToString()

    async def _counts(self, _: Call, message: bytes) -> bytes:
        self.looks += 1
        if not self.supported:
            raise RpcError(Status.UNIMPLEMENTED, "of an older release")
        return self.source.respond(pb.CountsRequest.FromString(message)).SerializeToString()


async def page_of(control: Control) -> int:
    response = await control.call("Metrics", pb.MetricsRequest(), pb.MetricsResponse)
    return int(response.exposition.split()[-1])


class World:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        mesh = cast("Any", self.scheduler)
        self.counts = ModelCounts(mesh, 5.0, interval_s=0.001)
        self.control = Control(mesh, 5.0, counts=self.counts)

    async def page(self) -> int:
        return await page_of(self.control)

    async def statistics(self) -> list[int]:
        response = await self.control.call(
            "ModelStatistics",
            kserve_pb2.ModelStatisticsRequest(name="m"),
            kserve_pb2.ModelStatisticsResponse,
        )
        assert [each.memory_usage[0].byte_size for each in response.model_stats] == [
            7 for _ in response.model_stats
        ]
        return [each.inference_count for each in response.model_stats]


async def test_what_was_shown_is_counted_on() -> None:
    it = World()
    it.scheduler.count(5)
    assert await it.page() == 5
    it.scheduler.restart()
    assert await it.page() == 5
    it.scheduler.count(2)
    assert await it.page() == 7
    assert await it.statistics() == [7]
    # The next gateway has it from the scheduler.
    next_counts = ModelCounts(cast("Any", it.scheduler), 5.0)
    it.control = Control(cast("Any", it.scheduler), 5.0, counts=next_counts)
    assert await it.page() == 7


async def test_a_scheduler_that_is_killed_between_a_page_and_the_look_has_shown_nothing() -> None:
    it = World()
    it.scheduler.count(5)
    assert await it.statistics() == [5]
    it.scheduler.count(90)
    it.scheduler.lives = [1]
    # Nobody was told the others.
    assert await it.statistics() == [5]


async def test_schedulers_that_are_killed_all_the_time_show_nothing() -> None:
    it = World()
    it.scheduler.lives = [1] * 20
    with pytest.raises(Unavailable):
        await it.page()


async def test_models_of_one_name_in_two_namespaces_are_as_the_scheduler_shows_them() -> None:
    it = World()
    it.scheduler.count(5)
    assert await it.page() == 5
    it.scheduler.restart()
    for number in (101, 102):
        record = pb.VersionCounts(id=number, model="other/m", version="1", number=1)
        record.statistics.name, record.statistics.version = "m", "1"
        it.scheduler.source.store.add(record)
    it.scheduler.names = ["m", "m", "n"]
    assert await it.statistics() == [0, 0, 0]


async def test_it_looks_without_being_asked_and_keeps_what_is_said_at_an_end() -> None:
    it = World()
    await it.counts.start()
    it.scheduler.count(5)
    before = it.scheduler.looks
    while it.scheduler.looks < before + 2:
        await asyncio.sleep(0)
    await it.counts.close()
    it.scheduler.count(2)
    it.counts.add(it.scheduler.source.changed_after(0).SerializeToString())
    it.scheduler.restart()
    assert await it.page() == 7


async def test_schedulers_of_an_older_release_and_none_at_all() -> None:
    it = World()
    it.scheduler.supported = False
    it.scheduler.count(5)
    assert await it.page() == 5
    assert await it.statistics() == [5]
    # It goes on looking for one that it can ask.
    await it.counts.start()
    before = it.scheduler.looks
    while it.scheduler.looks < before + 2:
        await asyncio.sleep(0)
    await it.counts.close()
    idle = ModelCounts(cast("Any", it.scheduler), 5.0)
    await idle.close()


async def test_gateways_of_a_group_show_no_less_than_another_one_has_shown(tmp_path: Path) -> None:
    scheduler = Scheduler()
    mesh = cast("Any", scheduler)
    groups = [GatewayGroup(number, 3, tmp_path) for number in range(2)]
    # Long pauses: nobody looks unless it is asked. The third gateway is not there.
    gateways = [ModelCounts(mesh, 5.0, 1000.0, group=each) for each in groups]
    first, second = (Control(mesh, 5.0, counts=each) for each in gateways)
    try:
        for each in gateways:
            await each.start()
        assert await page_of(second) == 0
        scheduler.count(5)
        assert await page_of(first) == 5
        scheduler.restart()
        assert await page_of(second) == 5
    finally:
        for each in gateways:
            await each.close()
