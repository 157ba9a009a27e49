"""Tensors in shared memory: buffers for bodies, leases of requests, views of responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import (
    CachedModels,
    ErrorStatus,
    FromScheduler,
    InferResponse,
    Release,
)
from nereid.mesh_routing.access import OneScheduler
from nereid.rpc import Handlers
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid.shm.mappings import read
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.tensors.tensor_memory import TensorMemory, tensor_bytes
from nereid_gateway.plane.upstream import Limits, Upstream
from tests.support.rpc.local_channel import LocalChannel

MIB = 1 << 20


def tensor_memory(*, limit_bytes: int = 8 * MIB, shared: bool = True) -> TensorMemory:
    memory = TensorMemory(limit_bytes)
    memory.on_scheduler_domain(memory.domain if shared else "")
    return memory


def unlimited_budget() -> ByteBudget:
    huge = 1 << 62
    return ByteBudget(BudgetLimits(total_bytes=huge, client_bytes=huge, connection_bytes=huge))


def test_small_and_unshared_bodies_have_no_buffer() -> None:
    assert tensor_memory().message_buffer(1000) is None
    assert tensor_memory(shared=False).message_buffer(MIB) is None
    assert tensor_memory(limit_bytes=MIB // 2).message_buffer(MIB) is None


@pytest.mark.parametrize("header_bytes", [0, 1, 64, 130])
def test_what_is_behind_the_header_is_aligned(header_bytes: int) -> None:
    buffer = tensor_memory().message_buffer(MIB, header_bytes)
    assert buffer is not None
    assert len(buffer) == len(buffer.view) == MIB
    buffer.view[header_bytes : header_bytes + 4] = b"data"
    reference = buffer[header_bytes : header_bytes + 4]
    assert reference.offset % 64 == 0
    assert read(reference) == b"data"


def test_tensors_in_bytes_are_moved_to_a_segment() -> None:
    memory = tensor_memory()
    tensors = [b"a" * 100_000, b"b" * 100_001, b"c"]
    request = ClientRequest(1, b"", list(tensors))
    memory.stage(request)
    assert request.lease is not None
    references: list[Any] = request.payloads
    assert [read(each) for each in references] == tensors
    assert all(each.offset % 64 == 0 for each in references)
    assert [bytes(tensor_bytes(request, each)) for each in references] == tensors
    before = list(request.payloads)
    memory.stage(request)
    assert request.payloads == before
    memory.make_inline(request)
    assert request.payloads == tensors
    assert request.lease is None
    assert memory.segments.total_bytes == 0


def test_small_and_unshared_tensors_are_not_moved() -> None:
    for memory, size_bytes in ((tensor_memory(), 1000), (tensor_memory(shared=False), MIB)):
        request = ClientRequest(1, b"", [bytes(size_bytes)])
        memory.stage(request)
        assert request.payloads == [bytes(size_bytes)]


class GatewayWithExecutor:
    """An Upstream whose scheduler and executor are the test."""

    def __init__(self) -> None:
        self.memory = TensorMemory(8 * MIB)
        self.executor = SegmentPool(8 * MIB)
        self.sent: list[Any] = []
        self.responses: list[InferResponse] = []
        self.up = False
        mesh = OneScheduler(self._open, LocalChannel(Handlers()))
        self.upstream = Upstream(mesh, Limits(10, 10.0), self.memory, unlimited_budget())
        self.upstream.start()
        self.on_items([CachedModels((), self.memory.domain)])

    def _open(self, *, on_items: Any, on_up: Any, on_down: Any) -> GatewayWithExecutor:
        self.on_items, self.on_up, self.on_down = on_items, on_up, on_down
        on_up()
        return self

    def send(self, item: Any, at_once: bool = False) -> None:
        self.sent.append(item)

    def close(self) -> None:
        pass

    def submit(self) -> ClientRequest:
        request = ClientRequest(0, b"", [bytes(MIB)])
        self.memory.stage(request)
        self.pending = self.upstream.infer(request, self.responses.append)
        return request

    def response(self, request: ClientRequest, *contents: bytes) -> InferResponse:
        segment = self.executor.acquire_segment(MIB)
        assert segment is not None
        references: list[Any] = []
        for index, content in enumerate(contents):
            segment.view[index * 64 : index * 64 + len(content)] = content
            references.append(segment.range(index * 64, len(content)))
        return InferResponse(request.id, b"head", references, segment_name=segment.name)

    def receive(self, *items: FromScheduler) -> None:
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


async def test_a_responses_segment_is_released_with_its_last_view() -> None:
    it = GatewayWithExecutor()
    request = it.submit()
    response = it.response(request, b"first", b"second")
    it.receive(response)
    (delivered,) = it.responses
    assert [bytes(each) for each in delivered.payloads] == [b"first", b"second"]  # type: ignore[arg-type]
    kept = delivered.payloads.pop()
    it.responses.clear()
    del delivered, response
    await turn()
    assert it.released() == []
    assert bytes(kept) == b"second"  # type: ignore[arg-type]
    del kept
    await turn()
    assert len(it.released()) == 1


async def test_the_segment_of_a_cancelled_requests_response_is_released_at_once() -> None:
    it = GatewayWithExecutor()
    request = it.submit()
    response = it.response(request, b"x")
    it.pending.cancel()
    it.receive(response)
    await turn()
    assert it.released() == [response.segment_name]
    assert not it.responses


async def test_a_request_whose_response_is_lost_is_sent_again_a_few_times() -> None:
    it = GatewayWithExecutor()
    request = it.submit()
    for attempt in range(1, 4):
        assert it.sent.count(request) == attempt
        assert isinstance(request.payloads[0], SharedMemory)
        lost = it.response(request, b"x")
        it.executor.discard(lost.segment_name)
        it.receive(lost)
    (delivered,) = it.responses
    assert delivered.error is not None
    assert delivered.error.code == Unavailable.code
    assert it.sent.count(request) == 3


async def test_a_lost_response_is_replaced_by_the_next() -> None:
    it = GatewayWithExecutor()
    request = it.submit()
    lost = it.response(request, b"x")
    it.executor.discard(lost.segment_name)
    it.receive(lost)
    it.receive(it.response(request, b"y"))
    assert [bytes(each) for each in it.responses[0].payloads] == [b"y"]  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["answered", "resent", "failed", "cancelled"])
async def test_the_segment_of_a_request_is_used_again_only_after_its_response(end: str) -> None:
    it = GatewayWithExecutor()
    request = it.submit()
    assert it.memory.segments.used_count == 1
    # Its first run may still be reading the segment.
    request.resent = end == "resent"
    if end in {"answered", "resent"}:
        it.receive(InferResponse(request.id, b"head", [b"x"]))
    elif end == "failed":
        it.receive(
            InferResponse(request.id, error=ErrorStatus(13, "some executor may still be at it"))
        )
    else:
        it.pending.cancel()
    # A scheduler in this process may hold the request for longer.
    assert request.lease is None
    assert it.memory.segments.used_count == 0
    assert bool(it.memory.segments.total_bytes) is (end == "answered")


async def test_another_scheduler_may_not_share_memory() -> None:
    it = GatewayWithExecutor()
    waiting = it.submit()
    it.on_down()
    assert not it.memory.shared
    it.sent.clear()
    it.receive(CachedModels((), "some other machine"))
    assert it.sent == [waiting]
    assert waiting.payloads == [bytes(MIB)]
    assert it.submit().lease is None
    it.receive(CachedModels((), it.memory.domain))
    assert it.submit().lease is not None


async def test_a_buffer_made_before_the_link_broke_is_sent_inline() -> None:
    it = GatewayWithExecutor()
    request = ClientRequest(0, b"", [bytes(MIB)])
    it.memory.stage(request)
    it.on_down()
    it.upstream.infer(request, it.responses.append)
    assert request.payloads == [bytes(MIB)]
