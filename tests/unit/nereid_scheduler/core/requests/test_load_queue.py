"""Requests that wait for their model's first load."""

import asyncio
import time

from nereid.core.errors import Unavailable
from tests.support.scheduler.world import AdmissionWorld, request, turn


async def test_the_load_queue_is_bounded() -> None:
    it = AdmissionWorld(max_held=1)
    it.gateway.on_items([request(1), request(2)])
    assert it.errors() == [(2, "Exceeds maximum queue size")]
    unbounded = AdmissionWorld(max_held=0)
    unbounded.gateway.on_items([request(1), request(2), request(3)])
    assert len(unbounded.load_queue) == 3
    unbounded.gateway.on_down()
    it.gateway.on_down()


async def test_a_deadline_beyond_the_limit_changes_nothing() -> None:
    it = AdmissionWorld(limit_s=0.0)
    it.gateway.on_items([request(1, deadline=time.monotonic() + 100)])
    await asyncio.wait_for(it.load_queue.idle(), 5)
    assert it.errors() == [(1, "model 'm' is being loaded; waited 0 s for it")]


async def test_held_requests_fail_at_the_end() -> None:
    it = AdmissionWorld()
    it.gateway.on_items([request(1)])
    idle = asyncio.ensure_future(it.load_queue.idle())
    await turn()
    it.load_queue.fail_all(Unavailable("the end"))
    await asyncio.wait_for(idle, 5)
    await it.load_queue.idle()
    assert it.errors() == [(1, "the end")]
