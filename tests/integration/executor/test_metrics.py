"""An executor's usage reports, and its own metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nereid.observability.metrics_page import Page
from nereid_executor.service import ExecutorService
from tests.support.executor.executor_site import running
from tests.support.executor.executor_world import WAIT_S, request
from tests.support.waiting import until


def series(service: ExecutorService) -> list[str]:
    page = Page()
    service.write_metrics(page)
    return [line for line in page.encode().decode().splitlines() if not line.startswith("#")]


async def test_usage_is_reported_at_intervals(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval_ms=1) as world:
        for _ in range(2):
            usage = await asyncio.wait_for(world.session.usages.get(), WAIT_S)
            assert 0 <= usage.cpu_utilization <= 1
            assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
            assert not usage.gpus


async def test_batches_of_ended_instances_still_count(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval_ms=0) as world:
        assert series(world.service)[0].startswith("nereid_executor_joined ")
        stream = await world.instance()
        for _ in range(3):
            await stream.execute(request(1))
        identity = '{model="m",version="1"}'
        assert f"nereid_executor_instances{identity} 1" in series(world.service)
        world.session.unload(7)
        event = await world.session.event()
        assert event.instance_unloaded.instance == 7
        lines = series(world.service)
        assert f"nereid_executor_batches_total{identity} 3" in lines
        assert "nereid_executor_joined 1" in lines
        assert world.session.usages.empty()


async def test_an_executor_that_is_asked_for_nothing_is_ready(tmp_path: Path) -> None:
    """As with --lazy-loading: the scheduler accepts it, and has no command for it."""
    async with running(tmp_path, metrics_interval_ms=0) as world:
        await until(lambda: world.service.ready)
        assert "nereid_executor_joined 1" in series(world.service)
        world.service.leave()
        assert not world.service.ready
