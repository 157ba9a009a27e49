"""`docker compose up` as a user meets it: it serves, scales, and loses nothing."""

from __future__ import annotations

import asyncio

from tests.compose.load import ask, clients, load
from tests.compose.models import CACHED, PLAIN, SLOW
from tests.compose.stack import SERVICES, Stack, until

_SERIES_OF_CACHED = f'{{model="{CACHED}",version="1"}}'


def _edges(stack: Stack) -> tuple[str, str]:
    return stack.address("gateway", 8000), stack.address("gateway", 8001)


async def test_clients_on_the_host_get_responses_over_both_protocols(stack: Stack) -> None:
    async with clients(*_edges(stack)) as pairs:
        for module, client in pairs:
            assert await client.is_server_ready()
            await ask(module, client, PLAIN, 21)
            await ask(module, client, CACHED, 21)


def test_services_run_without_root_on_a_file_system_they_cannot_change(stack: Stack) -> None:
    for service in SERVICES:
        assert stack.compose("exec", "-T", service, "id", "-u").strip() == "10001"
        (container,) = stack.containers(service)
        facts = stack.docker("inspect", "-f", "{{.HostConfig.ReadonlyRootfs}}", container)
        assert facts.strip() == "true"


async def test_an_executor_and_redis_killed_under_load_cost_no_request(stack: Stack) -> None:
    stack.up(executors=2)
    executors = stack.containers("executor")
    assert len(executors) == 2
    until(lambda: stack.metrics()["nereid_executors"] == 2, "both executors to join")
    before = stack.metrics()
    async with load(*_edges(stack)) as running:
        await running.more(200)
        hits = "nv_cache_num_hits_per_model" + _SERIES_OF_CACHED
        assert (await asyncio.to_thread(stack.metrics))[hits] > before[hits]

        await asyncio.to_thread(stack.docker, "kill", executors[0])
        await running.more(200)
        assert (await asyncio.to_thread(stack.metrics))["nereid_executors"] == 1

        await asyncio.to_thread(stack.compose, "kill", "redis")
        await running.more(400)
        assert (await asyncio.to_thread(stack.metrics))["nereid_cache_failures_total"] > 0

        # Started again, it is used again, also without a restart of anything else.
        await asyncio.to_thread(stack.up, executors=2)
        now = await asyncio.to_thread(stack.metrics)
        await running.more(400)
        assert (await asyncio.to_thread(stack.metrics))[hits] > now[hits]
    assert running.failures == []


def test_prometheus_scrapes_every_service(stack: Stack) -> None:
    stack.up(executors=2)
    jobs = ["cache", "executor", "executor", "gateway", "prometheus", "scheduler"]
    until(lambda: stack.targets() == [(job, "up") for job in jobs], f"{jobs} to be scraped")


async def test_accepted_requests_complete_when_everything_stops(stack: Stack) -> None:
    """The last test: it leaves nothing running."""
    stack.up(executors=2)
    async with clients(*_edges(stack), 6) as pairs:
        asked = [
            asyncio.create_task(ask(module, client, SLOW, number, factor=1))
            for number, (module, client) in enumerate(pairs)
        ]

        def accepted() -> bool:
            # In this order none is counted twice.
            responded = sum(each.done() for each in asked)
            return responded + stack.metrics()["nereid_gateway_pending_requests"] >= len(asked)

        await asyncio.to_thread(until, accepted, "all requests to be accepted")
        await asyncio.to_thread(stack.compose, "stop")
        await asyncio.gather(*asked)
    assert stack.containers("gateway") == []
