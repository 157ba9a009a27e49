"""What models ask of the mesh: each request has one answer, whatever became of who answered."""

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
    SharedMemory,
    ToScheduler,
)
from nereid.core.methods import INFER_PATH
from nereid.rpc import Call, Handlers, Link, LocalChannel, accept_link
from nereid.services.executor.mesh_client import Mesh
from nereid.shm.segments import Segments

LIMIT_S = 10.0
DOMAIN = "here"


class Scheduler:
    """Greets, and answers when the test does."""

    def __init__(self) -> None:
        self.link: Link[FromScheduler]
        self.got: list[ToScheduler] = []

    def accept(self, call: Call) -> None:
        self.link = accept_link(call, _Codec(), on_items=self.got.extend, on_down=lambda: None)
        self.link.send(CachedModels((), DOMAIN))

    async def requests(self, count: int) -> list[InferRequest]:
        """All that came, once they are so many."""
        await until(lambda: len(self._requests()) == count)
        return self._requests()

    def _requests(self) -> list[InferRequest]:
        return [each for each in self.got if isinstance(each, InferRequest)]


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
async def meshes() -> AsyncIterator[tuple[Mesh, Scheduler]]:
    scheduler = Scheduler()
    channel = LocalChannel(Handlers(stream={INFER_PATH: scheduler.accept}))
    mesh = Mesh(channel, DOMAIN)
    try:
        yield mesh, scheduler
    finally:
        mesh.close()
        await channel.close()


def gone() -> str:
    """A segment that was."""
    segments = Segments(1 << 20)
    segment = segments.take(1 << 16)
    assert segment is not None
    segments.discard(segment.name)
    return segment.name


async def test_an_response_that_died_with_its_executor_is_asked_for_again() -> None:
    async with meshes() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"head", [b"tensor"]), responses.append)
        (first,) = await scheduler.requests(1)
        lost = gone()
        scheduler.link.send(
            InferResponse(first.id, b"answer", [SharedMemory(lost, 0, 4)], segment_name=lost)
        )
        _, again = await scheduler.requests(2)
        assert (again.id, again.head, again.payloads) == (first.id, b"head", [b"tensor"])
        await until(lambda: Release((lost,)) in scheduler.got)
        assert responses == []
        segments = Segments(1 << 20)
        segment = segments.take(1 << 16)
        assert segment is not None
        scheduler.link.send(
            InferResponse(first.id, b"answer", [segment.range(0, 4)], segment_name=segment.name)
        )
        await until(lambda: responses)
        assert [(each.head, each.segment_name) for each in responses] == [(b"answer", segment.name)]
        # Another one has no taker.
        scheduler.link.send(
            InferResponse(first.id, b"answer", [segment.range(0, 4)], segment_name=segment.name)
        )
        await until(lambda: Release((segment.name,)) in scheduler.got)
        assert len(responses) == 1


async def test_it_is_not_asked_for_again_without_end() -> None:
    async with meshes() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"head", []), responses.append)
        lost = gone()
        for count in range(1, 4):
            (*_, last) = await scheduler.requests(count)
            assert responses == []
            scheduler.link.send(
                InferResponse(last.id, b"answer", [SharedMemory(lost, 0, 4)], segment_name=lost)
            )
        # Who wants to read it is told that it is lost.
        await until(lambda: responses)
        assert [each.segment_name for each in responses] == [lost]


async def test_what_had_an_response_already_is_not_asked_for_again() -> None:
    async with meshes() as (mesh, scheduler):
        responses: list[InferResponse] = []
        mesh.infer(InferRequest(0, b"head", []), responses.append)
        (request,) = await scheduler.requests(1)
        lost = gone()
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


async def test_what_was_given_up_meanwhile_is_not_asked_for_again() -> None:
    async with meshes() as (mesh, scheduler):
        responses: list[InferResponse] = []
        asked = mesh.infer(InferRequest(0, b"head", []), responses.append)
        (seen,) = await scheduler.requests(1)
        asked.send_control("cancel")
        await until(lambda: Cancel(seen.id) in scheduler.got)
        lost = gone()
        scheduler.link.send(
            InferResponse(seen.id, b"answer", [SharedMemory(lost, 0, 4)], segment_name=lost)
        )
        await until(lambda: Release((lost,)) in scheduler.got)
        assert len(await scheduler.requests(1)) == 1
        assert responses == []


async def test_an_responded_request_is_forgotten_long_before_its_deadline() -> None:
    class Parameters(dict[str, Parameter]):
        """As a dictionary, but can be watched."""

    async with meshes() as (mesh, scheduler):
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
        scheduler.link.send(InferResponse(seen.id, b"answer"))
        await until(lambda: responses)
        gc.collect()
        assert left() is None
