"""Models' requests to the mesh: each gets its response, though executors end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable

from nereid.core.codecs import RequestCodec, ResponseCodec
from nereid.core.messages import (
    CachedModels,
    Cancel,
    FromScheduler,
    InferRequest,
    InferResponse,
    Parameter,
    Release,
    ToScheduler,
)
from nereid.core.methods import INFER_PATH
from nereid.rpc import Call, Handlers, Link, LocalChannel, accept_link
from nereid.services.executor.mesh_client import Mesh
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool

LIMIT_S = 10.0
DOMAIN = "here"


class Scheduler:
    """Greets; the test responds."""

    def __init__(self) -> None:
        self.link: Link[FromScheduler]
        self.received: list[ToScheduler] = []

    def accept(self, call: Call) -> None:
        self.link = accept_link(call, _Codec(), on_items=self.received.extend, on_down=lambda: None)
        self.link.send(CachedModels((), DOMAIN))

    async def requests(self, count: int) -> list[InferRequest]:
        """All requests, once they are so many."""
        await until(lambda: len(self._requests()) == count)
        return self._requests()

    def _requests(self) -> list[InferRequest]:
        return [each for each in self.received if isinstance(each, InferRequest)]


class _Codec:
    def __init__(self) -> None:
        out = ResponseCodec()
        self.size_bytes, self.encode = out.size_bytes, out.encode
        self.decode = RequestCodec().decode


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def mesh_and_scheduler() -> AsyncIterator[tuple[Mesh, Scheduler]]:
    scheduler = Scheduler()
    channel = LocalChannel(Handlers(stream={INFER_PATH: scheduler.accept}))
    mesh = Mesh(channel, DOMAIN)
    try:
        yield mesh, scheduler
    finally:
        mesh.close()
        await channel.close()


def lost_segment() -> str:
    """The name of a segment that does not exist any more."""
    segments = SegmentPool(1 << 20)
    segment = segments.acquire_segment(1 << 16)
    assert segment is not None
    segments.discard(segment.name)
    return segment.name


async def test_a_request_is_sent_again_if_its_response_was_lost() -> None:
    async with mesh_and_scheduler() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"head", [b"tensor"]), responses.append)
        (first,) = await scheduler.requests(1)
        lost = lost_segment()
        scheduler.link.send(
            InferResponse(first.id, b"response", [SharedMemory(lost, 0, 4)], segment_name=lost)
        )
        _, again = await scheduler.requests(2)
        assert (again.id, again.head, again.payloads) == (first.id, b"head", [b"tensor"])
        await until(lambda: Release((lost,)) in scheduler.received)
        assert responses == []
        segments = SegmentPool(1 << 20)
        segment = segments.acquire_segment(1 << 16)
        assert segment is not None
        scheduler.link.send(
            InferResponse(first.id, b"response", [segment.range(0, 4)], segment_name=segment.name)
        )
        await until(lambda: responses)
        assert [(each.head, each.segment_name) for each in responses] == [
            (b"response", segment.name)
        ]
        # A second one is released.
        scheduler.link.send(
            InferResponse(first.id, b"response", [segment.range(0, 4)], segment_name=segment.name)
        )
        await until(lambda: Release((segment.name,)) in scheduler.received)
        assert len(responses) == 1


async def test_a_request_is_not_sent_again_without_end() -> None:
    async with mesh_and_scheduler() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"head", []), responses.append)
        lost = lost_segment()
        for count in range(1, 4):
            (*_, last) = await scheduler.requests(count)
            assert responses == []
            scheduler.link.send(
                InferResponse(last.id, b"response", [SharedMemory(lost, 0, 4)], segment_name=lost)
            )
        # Its receiver finds out when it opens the segment.
        await until(lambda: responses)
        assert [each.segment_name for each in responses] == [lost]


async def test_a_request_with_a_response_is_not_sent_again() -> None:
    async with mesh_and_scheduler() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"head", []), responses.append)
        (request,) = await scheduler.requests(1)
        lost = lost_segment()
        scheduler.link.send(
            InferResponse(
                request.id, b"one", [SharedMemory(lost, 0, 4)], segment_name=lost, more=True
            )
        )
        scheduler.link.send(
            InferResponse(request.id, b"two", [SharedMemory(lost, 0, 4)], segment_name=lost)
        )
        await until(lambda: len(responses) == 2)
        assert [each.head for each in responses] == [b"one", b"two"]
        assert len(await scheduler.requests(1)) == 1


async def test_a_cancelled_request_is_not_sent_again() -> None:
    async with mesh_and_scheduler() as (mesh, scheduler):
        responses: list[InferResponse] = []
        asked = mesh.infer(InferRequest(0, b"head", []), responses.append)
        (seen,) = await scheduler.requests(1)
        asked.send_control("cancel")
        await until(lambda: Cancel(seen.id) in scheduler.received)
        lost = lost_segment()
        scheduler.link.send(
            InferResponse(seen.id, b"response", [SharedMemory(lost, 0, 4)], segment_name=lost)
        )
        await until(lambda: Release((lost,)) in scheduler.received)
        assert len(await scheduler.requests(1)) == 1
        assert responses == []


async def test_a_finished_request_is_not_kept_until_its_deadline() -> None:
    class Parameters(dict[str, Parameter]):
        """As a dictionary, but can be watched."""

    async with mesh_and_scheduler() as (mesh, scheduler):
        responses: list[InferResponse] = []
        parameters = Parameters(key="value")
        left = weakref.ref(parameters)
        deadline = time.monotonic() + 3600
        mesh.infer(
            InferRequest(0, b"head", [], parameters=parameters, deadline=deadline), responses.append
        )
        del parameters
        (seen,) = await scheduler.requests(1)
        assert left() is not None
        scheduler.link.send(InferResponse(seen.id, b"response"))
        await until(lambda: responses)
        gc.collect()
        assert left() is None


async def test_a_request_is_cancelled_at_its_deadline() -> None:
    async with mesh_and_scheduler() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"opens the link", []), lambda _response: None)
        await scheduler.requests(1)
        request = InferRequest(0, b"head", [], deadline=time.monotonic() + 0.2)
        mesh.infer(request, responses.append)
        await until(lambda: responses)
        assert [each.error and each.error.code for each in responses] == [4]
        _, seen = await scheduler.requests(2)
        await until(lambda: Cancel(seen.id) in scheduler.received)
