"""What an executor tells of its machine, and counts of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nereid.observability.metrics_page import Page
from nereid.services.executor.service import ExecutorService
from tests.support.executor.executor_site import running
from tests.support.executor.executor_world import WAIT_S, request


def series(service: ExecutorService) -> list[str]:
    page = Page()
    service.write_metrics(page)
    return [line for line in page.encode().decode().splitlines() if not line.startswith("#")]


async def test_it_tells_how_busy_its_machine_is_again_and_again(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval_ms=1) as world:
        for _ in range(2):
            usage = await asyncio.wait_for(world.stay.usages.get(), WAIT_S)
            assert 0 <= usage.cpu_utilization <= 1
            assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
            assert not usage.gpus


async def test_it_counts_its_instances_and_their_batches_past_their_end(tmp_path: Path) -> None:
    async with running(tmp_path, metrics_interval_ms=0) as world:
        assert series(world.service)[0].startswith("nereid_executor_joined ")
        stream = await world.instance()
        for _ in range(3):
            await stream.execute(request(1))
        identity = '{model="m",version="1"}'
        assert f"nereid_executor_instances{identity} 1" in series(world.service)
        world.stay.unload(7)
        event = await world.stay.event()
        assert event.instance_unloaded.instance == 7
        told = series(world.service)
        assert f"nereid_executor_batches_total{identity} 3" in told
        assert "nereid_executor_joined 1" in told
        assert world.stay.usages.empty()
