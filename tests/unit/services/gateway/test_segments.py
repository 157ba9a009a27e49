"""The gateway's side of shared memory: rooms for bodies, leases of requests, views of answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.messages import (
    Answer,
    CachedModels,
    Fault,
    FromScheduler,
    InferRequest,
    Release,
    SharedMemory,
)
from nereid.services.gateway.segments import Slabs, tensor_bytes
from nereid.services.gateway.upstream import Limits, Upstream
from nereid.shm.segments import Segments, read

MIB = 1 << 20


def slabs(*, limit_bytes: int = 8 * MIB, shared: bool = True) -> Slabs:
    made = Slabs(limit_bytes)
    made.shared = shared
    return made


def test_small_bodies_and_strangers_have_no_room() -> None:
    assert slabs().room(1000) is None
    assert slabs(shared=False).room(MIB) is None
    assert slabs(limit_bytes=MIB // 2).room(MIB) is None


@pytest.mark.parametrize("header_bytes", [0, 1, 64, 130])
def test_what_is_behind_the_header_is_aligned(header_bytes: int) -> None:
    room = slabs().room(MIB, header_bytes)
    assert room is not None
    assert len(room) == len(room.view) == MIB
    room.view[header_bytes : header_bytes + 4] = b"data"
    reference = room[header_bytes : header_bytes + 4]
    assert reference.offset % 64 == 0
    assert read(reference) == b"data"


def test_tensors_that_came_as_bytes_are_moved() -> None:
    its = slabs()
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
    for its, size_bytes in ((slabs(), 1000), (slabs(shared=False), MIB)):
        request = InferRequest(1, b"", [bytes(size_bytes)])
        its.stage(request)
        assert request.payloads == [bytes(size_bytes)]


class World:
    """An Upstream whose scheduler and executor are the test."""

    def __init__(self) -> None:
        self.slabs = Slabs(8 * MIB)
        self.executor = Segments(8 * MIB)
        self.sent: list[Any] = []
        self.answers: list[Answer] = []
        self.up = False
        self.upstream = Upstream(self._open, Limits(10, 10.0), self.slabs)
        self.upstream.start()
        self.on_items([CachedModels((), self.slabs.domain)])

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
        self.slabs.stage(request)
        self.pending = self.upstream.submit(request, self.answers.append)
        return request

    def answer(self, request: InferRequest, *contents: bytes) -> Answer:
        segment = self.executor.take(MIB)
        assert segment is not None
        references: list[Any] = []
        for index, content in enumerate(contents):
            segment.view[index * 64 : index * 64 + len(content)] = content
            references.append(segment.range(index * 64, len(content)))
        return Answer(request.id, b"head", references, slab=segment.name)

    def tell(self, *items: FromScheduler) -> None:
        self.on_items(list(items))

    def released(self) -> list[str]:
        return [slab for item in self.sent if isinstance(item, Release) for slab in item.slabs]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_an_answer_is_read_in_place_and_goes_back_with_its_last_view() -> None:
    it = World()
    request = it.submit()
    answer = it.answer(request, b"first", b"second")
    it.tell(answer)
    (told,) = it.answers
    assert [bytes(each) for each in told.payloads] == [b"first", b"second"]  # type: ignore[arg-type]
    kept = told.payloads.pop()
    it.answers.clear()
    del told, answer
    await turn()
    assert it.released() == []
    assert bytes(kept) == b"second"  # type: ignore[arg-type]
    del kept
    await turn()
    assert len(it.released()) == 1


async def test_an_answer_without_a_taker_goes_back_at_once() -> None:
    it = World()
    request = it.submit()
    answer = it.answer(request, b"late")
    it.pending.cancel()
    it.tell(answer)
    await turn()
    assert it.released() == [answer.slab]
    assert not it.answers


async def test_a_request_whose_answer_is_lost_is_sent_again_a_few_times() -> None:
    it = World()
    request = it.submit()
    for attempt in range(1, 4):
        assert it.sent.count(request) == attempt
        assert isinstance(request.payloads[0], SharedMemory)
        lost = it.answer(request, b"x")
        it.executor.discard(lost.slab)
        it.tell(lost)
    (told,) = it.answers
    assert told.error is not None
    assert told.error.code == Unavailable.code
    assert it.sent.count(request) == 3


async def test_a_lost_answer_is_made_good_by_the_next() -> None:
    it = World()
    request = it.submit()
    lost = it.answer(request, b"x")
    it.executor.discard(lost.slab)
    it.tell(lost)
    it.tell(it.answer(request, b"y"))
    assert [bytes(each) for each in it.answers[0].payloads] == [b"y"]  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["answered", "failed", "cancelled"])
async def test_the_segment_of_a_request_is_used_again_only_after_its_answer(end: str) -> None:
    it = World()
    request = it.submit()
    assert it.slabs.segments.taken == 1
    if end == "answered":
        it.tell(Answer(request.id, b"head", [b"x"]))
    elif end == "failed":
        it.tell(Answer(request.id, error=Fault(13, "some executor may still be at it")))
    else:
        it.pending.cancel()
    # Whoever else holds the request: a scheduler in this process does.
    assert request.lease is None
    assert it.slabs.segments.taken == 0
    assert bool(it.slabs.segments.total_bytes) is (end == "answered")


async def test_a_link_that_comes_back_may_lead_to_a_stranger() -> None:
    it = World()
    waiting = it.submit()
    it.on_down()
    assert not it.slabs.shared
    it.sent.clear()
    it.on_up()
    assert it.sent == [waiting]
    assert waiting.payloads == [bytes(MIB)]
    assert it.submit().lease is None
    it.tell(CachedModels((), "some other machine"))
    assert it.submit().lease is None
    it.tell(CachedModels((), it.slabs.domain))
    assert it.submit().lease is not None


async def test_a_room_that_was_made_before_the_link_broke_is_not_spoken_of() -> None:
    it = World()
    request = InferRequest(0, b"", [bytes(MIB)])
    it.slabs.stage(request)
    it.on_down()
    it.upstream.submit(request, it.answers.append)
    assert request.payloads == [bytes(MIB)]
