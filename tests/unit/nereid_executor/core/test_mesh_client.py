"""Models' requests to the mesh: each gets its response, though executors end."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nereid.backends import MeshRequest
from nereid.core.methods import INFER_PATH
from nereid.core.wire.messages import Cancel, InferRequest, InferResponse, Parameter, Release
from nereid.rpc import Handlers
from nereid.shm.segments import SegmentPool
from nereid_executor.core.mesh_client import Mesh
from tests.support.executor.linked_scheduler import DOMAIN, LinkedScheduler
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import until


class Site:
    """The executor's client, its scheduler, and the responses that a model has got."""

    def __init__(self) -> None:
        self.scheduler = LinkedScheduler()
        self.channel = LocalChannel(Handlers(stream={INFER_PATH: self.scheduler.accept}))
        self.mesh = Mesh(self.channel, DOMAIN)
        self.responses: list[InferResponse] = []
        self.segments = SegmentPool(1 << 20)

    async def infer(self, **fields: Any) -> tuple[MeshRequest, InferRequest]:
        """What cancels the request, and what the scheduler has received."""
        before = len(self.scheduler.requests_so_far())
        made = self.mesh.infer(InferRequest(0, b"head", [b"t"], **fields), self.responses.append)
        return made, (await self.scheduler.requests(before + 1))[-1]

    def respond(self, request: InferRequest, *, lost: bool = False, **fields: Any) -> str:
        """By a segment, whose name it returns; a lost one does not exist any more."""
        segment = self.segments.acquire_segment(1 << 16)
        assert segment is not None
        if lost:
            self.segments.discard(segment.name)
        self.scheduler.link.send(
            InferResponse(
                request.id, b"response", [segment.range(0, 4)], segment_name=segment.name, **fields
            )
        )
        return segment.name

    async def released(self, segment_name: str) -> None:
        await until(lambda: Release((segment_name,)) in self.scheduler.received)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    made.mesh.close()
    await made.channel.close()


async def test_a_request_is_sent_again_if_its_response_was_lost(site: Site) -> None:
    _, first = await site.infer()
    await site.released(site.respond(first, lost=True))
    _, again = await site.scheduler.requests(2)
    assert (again.id, again.head, again.payloads) == (first.id, b"head", [b"t"])
    assert site.responses == []
    name = site.respond(again)
    await until(lambda: site.responses)
    assert [each.segment_name for each in site.responses] == [name]
    # A second one is released.
    await site.released(site.respond(again))
    assert len(site.responses) == 1


async def test_a_request_is_not_sent_again_without_end(site: Site) -> None:
    _, last = await site.infer()
    for count in (2, 3):
        site.respond(last, lost=True)
        last = (await site.scheduler.requests(count))[-1]
        assert site.responses == []
    # Its receiver finds out when it opens the segment.
    name = site.respond(last, lost=True)
    await until(lambda: site.responses)
    assert [each.segment_name for each in site.responses] == [name]


async def test_a_request_with_a_response_is_not_sent_again(site: Site) -> None:
    _, request = await site.infer()
    site.respond(request, lost=True, more=True)
    site.respond(request, lost=True)
    await until(lambda: len(site.responses) == 2)
    assert len(site.scheduler.requests_so_far()) == 1


async def test_a_cancelled_request_is_not_sent_again(site: Site) -> None:
    made, seen = await site.infer()
    made.send_control("cancel")
    await until(lambda: Cancel(seen.id) in site.scheduler.received)
    await site.released(site.respond(seen, lost=True))
    assert len(site.scheduler.requests_so_far()) == 1
    assert site.responses == []


async def test_a_finished_request_is_not_kept_until_its_deadline(site: Site) -> None:
    class Parameters(dict[str, Parameter]):
        """As a dictionary, but can be watched."""

    parameters = Parameters(key="value")
    left = weakref.ref(parameters)
    seen = (await site.infer(parameters=parameters, deadline=time.monotonic() + 3600))[1]
    del parameters
    assert left() is not None
    site.scheduler.link.send(InferResponse(seen.id, b"response"))
    await until(lambda: site.responses)
    gc.collect()
    assert left() is None


async def test_a_request_is_cancelled_at_its_deadline(site: Site) -> None:
    # This opens the link.
    await site.infer()
    _, seen = await site.infer(deadline=time.monotonic() + 0.2)
    await until(lambda: site.responses)
    assert [each.error and each.error.code for each in site.responses] == [4]
    await until(lambda: Cancel(seen.id) in site.scheduler.received)
