"""Pending requests: each gets its response once, whatever the link does."""

from __future__ import annotations

import asyncio
import mmap
from typing import TYPE_CHECKING

import pytest

from nereid.core.errors import Unavailable
from nereid.core.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    FromScheduler,
    InferRequest,
    InferResponse,
    Release,
)
from nereid.pb import kserve_pb2
from nereid.services.gateway.tensor_memory import TensorMemory
from nereid.services.gateway.upstream import Limits, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import ToScheduler


class FakeLink:
    """A link whose other end is the test."""

    def __init__(self) -> None:
        self.up = False
        self.sent: list[ToScheduler] = []
        self.closed = False
        self.flushes = 0
        self.on_items: Callable[[list[FromScheduler]], None]
        self.on_up: Callable[[], None]
        self.on_down: Callable[[], None]

    def send(self, item: ToScheduler) -> None:
        self.sent.append(item)

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.closed = True

    def sent_ids(self) -> list[int]:
        sent, self.sent = self.sent, []
        assert not any(isinstance(item, Release) for item in sent)
        return [-item.id if isinstance(item, Cancel) else item.id for item in sent]  # type: ignore[union-attr]


class Table:
    """An Upstream on a FakeLink, and the responses that it delivered."""

    def __init__(
        self,
        *,
        max_pending: int = 10,
        limit_s: float = 60.0,
        max_bytes: int = 1 << 30,
        up: bool = True,
    ) -> None:
        self.link = FakeLink()
        self.responses: list[InferResponse] = []
        self.arrived = asyncio.Event()

        def open_link(
            *,
            on_items: Callable[[list[FromScheduler]], None],
            on_up: Callable[[], None],
            on_down: Callable[[], None],
        ) -> FakeLink:
            self.link.on_items, self.link.on_up, self.link.on_down = on_items, on_up, on_down
            if up:
                on_up()
            return self.link

        limits = Limits(max_pending, limit_s, max_bytes)
        self.upstream = Upstream(open_link, limits, TensorMemory(0))
        self.client = self.upstream.client

    def submit(self, *payloads: bytes) -> InferRequest:
        request = InferRequest(0, b"", list(payloads))
        self.upstream.infer(request, self.on_response)
        return request

    def on_response(self, response: InferResponse) -> None:
        self.responses.append(response)
        self.arrived.set()

    def close(self) -> None:
        self.upstream.close(Unavailable("the server is shutting down"))


async def test_responses_find_their_requests() -> None:
    table = Table()
    table.upstream.start()
    first, second = table.submit(), table.submit()
    assert table.link.sent_ids() == [first.id, second.id]
    assert first.id != second.id
    table.link.on_items(
        [
            InferResponse(second.id),
            InferResponse(99),
            InferResponse(first.id),
            InferResponse(first.id),
        ]
    )
    assert [response.id for response in table.responses] == [second.id, first.id]
    assert len(table.client.requests) == 0
    table.close()
    assert table.link.closed


async def test_a_lone_request_is_flushed_at_once() -> None:
    table = Table()
    table.upstream.start()
    table.submit()
    assert table.link.flushes == 1
    table.submit()
    assert table.link.flushes == 1
    table.close()


async def test_requests_that_came_before_the_link_are_sent_with_it() -> None:
    table = Table()
    early = table.submit()
    table.upstream.start()
    assert table.link.sent_ids() == [early.id]
    table.close()


async def test_requests_outlive_a_broken_link() -> None:
    table = Table()
    table.upstream.start()
    first, second = table.submit(), table.submit()
    table.link.on_items([InferResponse(first.id)])
    table.link.on_down()
    table.link.on_down()
    assert not table.client.up
    table.link.sent.clear()
    third = table.submit()
    assert not table.link.sent
    table.link.on_up()
    table.link.on_up()
    assert table.link.sent_ids() == [second.id, third.id]
    table.close()


async def test_pending_requests_fail_and_new_ones_are_refused_past_the_reconnect_limit() -> None:
    table = Table(limit_s=0.01, up=False)
    table.upstream.start()
    table.submit()
    await asyncio.wait_for(table.arrived.wait(), 5)
    table.submit()
    outcomes = [response.error for response in table.responses]
    assert outcomes == [ErrorStatus(14, "the scheduler cannot be reached")] * 2
    table.link.on_up()
    fourth = table.submit()
    assert table.link.sent_ids() == [fourth.id]
    table.close()


async def test_requests_too_large_for_a_frame_are_refused() -> None:
    table = Table(max_bytes=1 << 40)
    table.upstream.start()
    # These pages are never touched.
    huge = memoryview(mmap.mmap(-1, 3 << 30))
    table.upstream.infer(
        InferRequest(0, b"", [huge[: 1 << 30], huge[1 << 30 :]]), table.on_response
    )
    assert table.responses[0].error == ErrorStatus(
        3,
        "3221225472 bytes of tensors are more than a request may have that is not in shared memory",
    )
    table.upstream.infer(InferRequest(0, b"", [huge[: 1 << 30]]), table.on_response)
    assert len(table.link.sent_ids()) == 1
    assert len(table.client.requests) == 1
    table.close()


async def test_the_number_of_pending_requests_is_bounded() -> None:
    table = Table(max_pending=1)
    table.upstream.start()
    first = table.submit()
    table.submit()
    assert table.responses[0].error == ErrorStatus(
        14, "Exceeds maximum queue size: 1 requests are pending"
    )
    table.link.on_items([InferResponse(first.id)])
    assert table.submit().id in table.link.sent_ids()
    table.close()


async def test_cancelled_requests_get_no_response() -> None:
    table = Table()
    table.upstream.start()
    pending = table.upstream.infer(InferRequest(0, b"", []), table.on_response)
    number = pending.request.id
    pending.cancel()
    pending.cancel()
    assert table.link.sent_ids() == [number, -number]
    table.link.on_items([InferResponse(number)])
    assert not table.responses
    # While the link is down nothing is sent.
    table.link.on_down()
    table.upstream.infer(InferRequest(0, b"", []), table.on_response).cancel()
    table.link.on_up()
    assert table.link.sent_ids() == []
    table.close()


async def test_draining_waits_for_responses_and_cancellations() -> None:
    table = Table()
    table.upstream.start()
    assert await table.upstream.drain(0)
    first = table.submit()
    second = table.upstream.infer(InferRequest(0, b"", []), table.on_response)
    assert not await table.upstream.drain(0.001)
    waiting = asyncio.ensure_future(table.upstream.drain(5))
    await asyncio.sleep(0)
    table.link.on_items([InferResponse(first.id)])
    assert not waiting.done()
    second.cancel()
    assert await waiting
    table.close()


async def test_closing_fails_pending_requests() -> None:
    table = Table()
    table.upstream.start()
    table.submit()
    waiting = asyncio.ensure_future(table.upstream.drain(5))
    await asyncio.sleep(0)
    table.close()
    table.submit()
    assert [response.error for response in table.responses] == [
        ErrorStatus(14, "the server is shutting down"),
        ErrorStatus(14, "the scheduler cannot be reached"),
    ]
    assert await waiting


async def test_closing_before_the_start_is_harmless() -> None:
    table = Table()
    table.close()
    assert not table.link.closed


async def test_a_callback_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.upstream.start()
    seen: list[InferResponse] = []

    def fail(response: InferResponse) -> None:
        seen.append(response)
        raise ZeroDivisionError

    bad = table.upstream.infer(InferRequest(0, b"", []), fail)
    good = table.submit()
    table.link.on_items([InferResponse(bad.request.id), InferResponse(good.id)])
    assert [response.id for response in table.responses] == [good.id]
    # It is called once more, with an internal error for its client.
    assert [response.error and response.error.code for response in seen] == [None, 13]
    assert "ZeroDivisionError" in caplog.text
    table.close()


async def test_responses_come_until_one_says_that_it_is_the_last() -> None:
    table = Table(max_bytes=100)
    table.upstream.start()
    many, one = table.submit(bytes(100)), table.submit()
    for head in (b"a", b"b"):
        table.link.on_items([InferResponse(many.id, head, more=True)])
    assert len(table.client.requests) == 2
    table.submit(b"x")
    assert "100 bytes are pending" in str(table.responses.pop().error)
    table.link.on_items(
        [
            InferResponse(one.id, b"c"),
            InferResponse(many.id),
            InferResponse(many.id, b"d", more=True),
        ]
    )
    assert [(response.id, response.head) for response in table.responses] == [
        (many.id, b"a"),
        (many.id, b"b"),
        (one.id, b"c"),
        (many.id, b""),
    ]
    assert len(table.client.requests) == table.client.pending_bytes == 0
    table.close()


async def test_a_request_that_had_an_response_is_not_sent_again() -> None:
    table = Table()
    table.upstream.start()
    begun, fresh = table.submit(b"x"), table.submit()
    table.link.on_items([InferResponse(begun.id, more=True)] * 3)
    table.link.on_down()
    text = "the link to the scheduler broke, 3 responses into the request"
    assert table.responses.pop().error == ErrorStatus(14, text, accepted=True)
    assert len(table.client.requests) == 1
    table.link.sent.clear()
    table.link.on_up()
    assert table.link.sent_ids() == [fresh.id]
    table.close()


async def test_flow_control_is_sent_to_the_scheduler() -> None:
    table = Table()
    table.upstream.start()
    pending = table.upstream.infer(InferRequest(0, b"", []), table.on_response)
    number = pending.request.id
    table.link.sent.clear()
    pending.set_flow(paused=True)
    pending.set_flow(paused=False)
    assert table.link.sent == [FlowControl(number, paused=True), FlowControl(number, paused=False)]
    table.link.sent.clear()
    table.link.on_down()
    pending.set_flow(paused=True)
    table.link.on_up()
    table.link.on_items([InferResponse(number)])
    pending.set_flow(paused=True)
    assert table.link.sent_ids() == [number]
    table.close()


async def test_a_callback_that_fails_is_called_with_the_last_response() -> None:
    table = Table()
    table.upstream.start()
    seen: list[InferResponse] = []

    def fail(response: InferResponse) -> None:
        seen.append(response)
        if len(seen) == 1:
            raise ZeroDivisionError

    number = table.upstream.infer(InferRequest(0, b"", []), fail).request.id
    table.link.on_items([InferResponse(number, more=True), InferResponse(number)])
    outcomes = [(response.error and response.error.code, response.more) for response in seen]
    assert outcomes == [(None, True), (13, True), (None, False)]
    table.close()


async def test_a_digest_goes_along_where_the_scheduler_asked_for_it() -> None:
    table = Table()
    table.upstream.start()
    head = kserve_pb2.ModelInferRequest(model_name="cached").SerializeToString()
    requests = [InferRequest(0, head, []) for _ in range(3)]
    table.upstream.infer(requests[0], table.on_response)
    table.link.on_items([CachedModels(("cached",))])
    table.upstream.infer(requests[1], table.on_response)
    table.link.on_items([CachedModels(())])
    table.upstream.infer(requests[2], table.on_response)
    assert [len(request.digest) for request in requests] == [0, 16, 0]
    assert table.responses == []


async def test_pending_bytes_are_bounded() -> None:
    table = Table(max_bytes=100)
    table.upstream.start()
    # A request larger than the limit is accepted while no other is pending.
    large = table.submit(bytes(1000))
    table.submit(b"")
    assert [response.error and response.error.code for response in table.responses] == [14]
    assert "1000 bytes are pending" in str(table.responses.pop().error)
    table.link.on_items([InferResponse(large.id)])
    first, second = table.submit(bytes(40), bytes(20)), table.submit(bytes(40))
    assert len(table.responses) == 1
    table.submit(bytes(1))
    assert [response.error and response.error.code for response in table.responses] == [None, 14]
    # Responses, cancellations and failures reduce the pending bytes.
    table.client.cancel(first.id)
    table.link.on_items([InferResponse(second.id)])
    assert len(table.responses) == 3
    third = table.submit(bytes(100))
    assert table.link.sent_ids()[-1] == third.id
    table.close()
    assert table.client.pending_bytes == 0
