"""The end of the mesh. This file is the last one: it leaves nothing running."""

from __future__ import annotations

import asyncio

from tests.compose.load import ask, clients
from tests.compose.models import SLOW
from tests.compose.stack import Stack
from tests.support.mesh.mesh import until


async def test_accepted_requests_complete_when_everything_stops(stack: Stack) -> None:
    stack.up(executors=2)
    async with clients(*stack.edges(), 6) as pairs:
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
