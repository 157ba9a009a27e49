"""The gateway's side of shared memory: rooms for bodies, leases of requests, views of answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.messages import (
    CachedModels,
    ErrorStatus,
    FromScheduler,
    InferRequest,
    InferResponse,
    Release,
    SharedMemory,
)
from nereid.services.gateway.shared_tensors import SharedTensors, tensor_bytes
from nereid.services.gateway.upstream import Limits, Upstream
from nereid.shm.mappings import read
from nereid.shm.segments import Segments

MIB = 1 << 20


def shared_tensors(*, limit_bytes: int = 8 * MIB, shared: bool = True) -> SharedTensors:
    made = SharedTensors(limit_bytes)
    made.shared = shared
    return made


def test_small_bodies_and_strangers_have_no_room() -> None:
    assert shared_tensors().room(1000) is None
    assert shared_tensors(shared=False).room(MIB) is None
    assert shared_tensors(limit_bytes=MIB // 2).room(MIB) is None


@pytest.mark.parametrize("header_bytes", [0, 1, 64, 130])
def test_what_is_behind_the_header_is_aligned(header_bytes: int) -> None:
    room = shared_tensors().room(MIB, header_bytes)
    assert room is not None
    assert len(room) == len(room.view) == MIB
    room.view[header_bytes : header_bytes + 4] = b"data"
    reference = room[header_bytes : header_bytes + 4]
    assert reference.offset % 64 == 0
    assert read(reference) == b"data"


def test_tensors_that_came_as_bytes_are_moved() -> None:
    its = shared_tensors()
    tensors = [b"a" * 100_000, b"b" * 100_001, b"c"]
    request = InferRequest(1, b"", list(tensors))
    its.stage(request)
    assert request.lease is not None
    references: list[Any] = request.payloads
    assert [read(each) for each in references] == tensors
    assert all(each.offset % 64 == 0 for each in references)
    assert [bytes(tensor_bytes(request, each)) for each in references] == tensors
    before = list(request.payloads)
    its.stage(request)
    assert request.payloads == before
    its.bring_in(request)
    assert request.payloads == tensors
    assert request.lease is None
    assert its.segments.total_bytes == 0


def test_tensors_stay_as_they_are_where_they_are_few_or_not_shared() -> None:
    for its, size_bytes in ((shared_tensors(), 1000), (shared_tensors(shared=False), MIB)):
        request = InferRequest(1, b"", [bytes(size_bytes)])
        its.stage(request)
        assert request.payloads == [bytes(size_bytes)]


class World:
    """An Upstream whose scheduler and executor are the test."""

    def __init__(self) -> None:
        self.shared_tensors = SharedTensors(8 * MIB)
        self.executor = Segments(8 * MIB)
        self.sent: list[Any] = []
        self.responses: list[InferResponse] = []
        self.up = False
        self.upstream = Upstream(self._open, Limits(10, 10.0), self.shared_tensors)
        self.upstream.start()
        self.on_items([CachedModels((), self.shared_tensors.domain)])

    def _open(self, *, on_items: Any, on_up: Any, on_down: Any) -> World:
        self.on_items, self.on_up, self.on_down = on_items, on_up, on_down
        on_up()
        return self

    def send(self, item: Any) -> None:
        self.sent.append(item)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def submit(self) -> InferRequest:
        request = InferRequest(0, b"", [bytes(MIB)])
        self.shared_tensors.stage(request)
        self.pending = self.upstream.submit(request, self.responses.append)
        return request

    def response(self, request: InferRequest, *contents: bytes) -> InferResponse:
        segment = self.executor.take(MIB)
        assert segment is not None
        references: list[Any] = []
        for index, content in enumerate(contents):
            segment.view[index * 64 : index * 64 + len(content)] = content
            references.append(segment.range(index * 64, len(content)))
        return InferResponse(request.id, b"head", references, segment_name=segment.name)

    def tell(self, *items: FromScheduler) -> None:
        self.on_items(list(items))

    def released(self) -> list[str]:
        return [
            segment_name
            for item in self.sent
            if isinstance(item, Release)
            for segment_name in item.segment_names
        ]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_an_response_is_read_in_place_and_goes_back_with_its_last_view() -> None:
    it = World()
    request = it.submit()
    response = it.response(request, b"first", b"second")
    it.tell(response)
    (told,) = it.responses
    assert [bytes(each) for each in told.payloads] == [b"first", b"second"]  # type: ignore[arg-type]
    kept = told.payloads.pop()
    it.responses.clear()
    del told, response
    await turn()
    assert it.released() == []
    assert bytes(kept) == b"second"  # type: ignore[arg-type]
    del kept
    await turn()
    assert len(it.released()) == 1


async def test_an_response_without_a_taker_goes_back_at_once() -> None:
    it = World()
    request = it.submit()
    response = it.response(request, b"late")
    it.pending.cancel()
    it.tell(response)
    await turn()
    assert it.released() == [response.segment_name]
    assert not it.responses


async def test_a_request_whose_response_is_lost_is_sent_again_a_few_times() -> None:
    it = World()
    request = it.submit()
    for attempt in range(1, 4):
        assert it.sent.count(request) == attempt
        assert isinstance(request.payloads[0], SharedMemory)
        lost = it.response(request, b"x")
        it.executor.discard(lost.segment_name)
        it.tell(lost)
    (told,) = it.responses
    assert told.error is not None
    assert told.error.code == Unavailable.code
    assert it.sent.count(request) == 3


async def test_a_lost_response_is_made_good_by_the_next() -> None:
    it = World()
    request = it.submit()
    lost = it.response(request, b"x")
    it.executor.discard(lost.segment_name)
    it.tell(lost)
    it.tell(it.response(request, b"y"))
    assert [bytes(each) for each in it.responses[0].payloads] == [b"y"]  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["answered", "failed", "cancelled"])
async def test_the_segment_of_a_request_is_used_again_only_after_its_response(end: str) -> None:
    it = World()
    request = it.submit()
    assert it.shared_tensors.segments.taken == 1
    if end == "answered":
        it.tell(InferResponse(request.id, b"head", [b"x"]))
    elif end == "failed":
        it.tell(
            InferResponse(request.id, error=ErrorStatus(13, "some executor may still be at it"))
        )
    else:
        it.pending.cancel()
    # Whoever else holds the request: a scheduler in this process does.
    assert request.lease is None
    assert it.shared_tensors.segments.taken == 0
    assert bool(it.shared_tensors.segments.total_bytes) is (end == "answered")


async def test_a_link_that_comes_back_may_lead_to_a_stranger() -> None:
    it = World()
    waiting = it.submit()
    it.on_down()
    assert not it.shared_tensors.shared
    it.sent.clear()
    it.on_up()
    assert it.sent == [waiting]
    assert waiting.payloads == [bytes(MIB)]
    assert it.submit().lease is None
    it.tell(CachedModels((), "some other machine"))
    assert it.submit().lease is None
    it.tell(CachedModels((), it.shared_tensors.domain))
    assert it.submit().lease is not None


async def test_a_room_that_was_made_before_the_link_broke_is_not_spoken_of() -> None:
    it = World()
    request = InferRequest(0, b"", [bytes(MIB)])
    it.shared_tensors.stage(request)
    it.on_down()
    it.upstream.submit(request, it.responses.append)
    assert request.payloads == [bytes(MIB)]
