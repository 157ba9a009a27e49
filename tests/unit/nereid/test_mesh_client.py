"""Pending requests: each gets its response once, whatever the link does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid.control_calls import UNREACHABLE
from nereid.core.errors import Unavailable
from nereid.core.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    Ownership,
    moved_response,
)
from nereid.mesh_client import MeshClient
from tests.support.mesh.fake_link import FakeLink, UnsharedTensors
from tests.support.mesh.fake_schedulers import FakeClock

if TYPE_CHECKING:
    import pytest


class ClientOnFakeLink:
    """A MeshClient, and the responses that it delivered."""

    def __init__(
        self,
        *,
        reconnect_limit_s: float | None = 60.0,
        up: bool = True,
        await_greeting: bool = False,
        clock: FakeClock | None = None,
    ) -> None:
        self.link = FakeLink(up=up)
        self.tensors = UnsharedTensors()
        self.responses: list[InferResponse] = []
        self.arrived = asyncio.Event()
        self.client = MeshClient(
            self.link.open,
            self.tensors,
            reconnect_limit_s=reconnect_limit_s,
            await_greeting=await_greeting,
            clock=clock,
        )

    def infer(self) -> InferRequest:
        request = InferRequest(0, b"", [])
        self.client.infer(request, self.on_response)
        return request

    def on_response(self, response: InferResponse) -> None:
        self.responses.append(response)
        self.arrived.set()

    def close(self) -> None:
        self.client.close(Unavailable("the server is shutting down"))


async def test_responses_find_their_requests() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    first, second = it.infer(), it.infer()
    assert it.link.sent_ids() == [first.id, second.id]
    assert first.id != second.id
    it.link.on_items(
        [
            InferResponse(second.id),
            InferResponse(99),
            InferResponse(first.id),
            InferResponse(first.id),
        ]
    )
    assert [response.id for response in it.responses] == [second.id, first.id]
    assert len(it.client.requests) == 0
    it.close()
    assert it.link.closed


async def test_a_lone_request_is_sent_at_once() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    it.infer()
    assert it.link.sent_now == 1
    it.infer()
    assert it.link.sent_now == 1
    it.close()


async def test_requests_that_came_before_the_link_are_sent_with_it() -> None:
    it = ClientOnFakeLink()
    early = it.infer()
    it.client.open()
    assert it.link.sent_ids() == [early.id]
    it.close()


async def test_requests_outlive_a_broken_link() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    first, second = it.infer(), it.infer()
    it.link.on_items([InferResponse(first.id)])
    it.link.on_down()
    it.link.on_down()
    assert not it.client.up
    it.link.sent.clear()
    third = it.infer()
    assert not it.link.sent
    it.link.on_up()
    it.link.on_up()
    assert it.link.sent_ids() == [second.id, third.id]
    it.close()


async def test_only_what_was_sent_before_is_marked_as_resent() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    sent = it.infer()
    assert not sent.resent
    it.link.on_down()
    unsent = it.infer()
    it.link.on_up()
    assert (sent.resent, unsent.resent) == (True, False)
    assert it.link.sent_ids()[-2:] == [sent.id, unsent.id]
    it.close()


LEAVING = Ownership("", 0, (), leaving=True)


async def test_a_scheduler_that_shuts_down_gets_no_new_requests() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    executing, returned, cancelled = it.infer(), it.infer(), it.infer()
    it.link.sent.clear()
    it.link.on_items([LEAVING])
    it.link.on_items([LEAVING])
    held = it.infer()
    # What it has goes on as ever.
    it.client.set_flow(executing.id, paused=True)
    it.client.cancel(cancelled.id)
    assert it.link.sent == [FlowControl(executing.id, paused=True), Cancel(cancelled.id)]
    it.link.on_items([moved_response(returned.id), moved_response(cancelled.id)])
    assert not it.responses
    it.link.sent.clear()
    it.link.on_down()
    it.link.on_down()
    assert not it.link.sent
    it.link.on_up()
    assert it.link.sent_ids() == [executing.id, returned.id, held.id]
    # Only what may have begun is marked.
    assert [each.resent for each in (executing, returned, held)] == [True, False, False]
    it.link.on_items([InferResponse(each.id) for each in (executing, returned, held)])
    assert [each.id for each in it.responses] == [executing.id, returned.id, held.id]
    assert it.link.sent_ids() == []
    later = it.infer()
    assert it.link.sent_ids() == [later.id]
    it.close()


async def test_a_scheduler_may_say_that_it_leaves_and_return_requests_in_one_frame() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    executing, returned, later = it.infer(), it.infer(), it.infer()
    it.link.sent.clear()
    it.link.on_items([LEAVING, moved_response(returned.id)])
    assert not it.responses
    it.link.on_down()
    it.link.on_up()
    # In the order of their arrival, though one was taken out and put back.
    assert it.link.sent_ids() == [executing.id, returned.id, later.id]
    assert [each.resent for each in (executing, returned, later)] == [True, False, True]
    it.close()


async def test_what_a_scheduler_returns_that_does_not_leave_is_an_error() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    request = it.infer()
    it.link.on_items([moved_response(request.id)])
    assert [each.error is not None for each in it.responses] == [True]
    assert not it.client.requests
    it.close()


async def test_a_response_that_closes_the_client_is_the_last_of_its_frame() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    closing = it.client.infer(InferRequest(0, b"", []), lambda _: it.close(), 3)
    other, cancelled = it.infer(), it.infer()
    it.client.cancel(cancelled.id)
    it.link.on_items([InferResponse(closing.request.id), InferResponse(other.id)])
    assert [each.error for each in it.responses] == [ErrorStatus(14, "the server is shutting down")]
    assert it.client.pending_bytes == 0


async def test_who_does_not_wait_for_a_scheduler_ignores_that_it_shuts_down() -> None:
    it = ClientOnFakeLink(reconnect_limit_s=None)
    it.client.open()
    it.link.on_items([LEAVING])
    request = it.infer()
    assert it.link.sent_ids() == [request.id]
    it.link.on_items([moved_response(request.id)])
    assert [each.id for each in it.responses] == [request.id]
    it.close()


async def test_no_two_clients_number_their_requests_alike() -> None:
    clients = [ClientOnFakeLink() for _ in range(20)]
    ids = [it.infer().id for it in clients for _ in range(2)]
    assert len(set(ids)) == len(ids)
    assert max(ids) < 1 << 63
    for it in clients:
        it.close()


async def test_pending_requests_fail_and_new_ones_are_refused_past_the_reconnect_limit() -> None:
    it = ClientOnFakeLink(reconnect_limit_s=0.01, up=False)
    it.client.open()
    it.infer()
    await asyncio.wait_for(it.arrived.wait(), 5)
    it.infer()
    outcomes = [response.error for response in it.responses]
    assert outcomes == [ErrorStatus(14, "the scheduler cannot be reached", retry_after_ms=1000)] * 2
    it.link.on_up()
    fourth = it.infer()
    assert it.link.sent_ids() == [fourth.id]
    it.close()


async def test_the_reconnect_limit_is_of_the_clock_that_it_is_given() -> None:
    clock = FakeClock()
    it = ClientOnFakeLink(clock=clock)
    it.client.open()
    it.infer()
    clock.advance(60)
    assert not it.responses
    it.link.on_down()
    clock.advance(59)
    assert not it.responses
    clock.advance(1)
    assert [each.error and each.error.message for each in it.responses] == [UNREACHABLE]
    it.close()


async def test_cancelled_requests_get_no_response() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    pending = it.client.infer(InferRequest(0, b"", []), it.on_response)
    number = pending.request.id
    pending.cancel()
    pending.cancel()
    assert it.link.sent_ids() == [number, -number]
    it.link.on_items([InferResponse(number)])
    assert not it.responses
    # While the link is down nothing is sent.
    it.link.on_down()
    it.client.infer(InferRequest(0, b"", []), it.on_response).cancel()
    it.link.on_up()
    assert it.link.sent_ids() == []
    it.close()


async def test_draining_waits_for_responses_and_cancellations() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    assert await it.client.drain(0)
    first = it.infer()
    second = it.client.infer(InferRequest(0, b"", []), it.on_response)
    assert not await it.client.drain(0.001)
    waiting = asyncio.ensure_future(it.client.drain(5))
    await asyncio.sleep(0)
    it.link.on_items([InferResponse(first.id)])
    assert not waiting.done()
    second.cancel()
    assert await waiting
    it.close()


async def test_closing_fails_pending_requests() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    it.infer()
    waiting = asyncio.ensure_future(it.client.drain(5))
    await asyncio.sleep(0)
    it.close()
    it.infer()
    assert [response.error for response in it.responses] == [
        ErrorStatus(14, "the server is shutting down"),
        ErrorStatus(14, "the scheduler cannot be reached", retry_after_ms=1000),
    ]
    assert await waiting


async def test_closing_before_the_start_is_harmless() -> None:
    it = ClientOnFakeLink()
    it.close()
    assert not it.link.closed


async def test_a_callback_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    it = ClientOnFakeLink()
    it.client.open()
    seen: list[InferResponse] = []

    def fail(response: InferResponse) -> None:
        seen.append(response)
        raise ZeroDivisionError

    bad = it.client.infer(InferRequest(0, b"", []), fail)
    good = it.infer()
    it.link.on_items([InferResponse(bad.request.id), InferResponse(good.id)])
    assert [response.id for response in it.responses] == [good.id]
    # It is called once more, with an internal error for its client.
    assert [response.error and response.error.code for response in seen] == [None, 13]
    assert "ZeroDivisionError" in caplog.text
    it.close()


async def test_a_request_that_had_an_response_is_not_sent_again() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    begun, fresh = it.infer(), it.infer()
    it.link.on_items([InferResponse(begun.id, more=True)] * 3)
    it.link.on_down()
    text = "the link to the scheduler broke, 3 responses into the request"
    assert it.responses.pop().error == ErrorStatus(14, text, accepted=True, retry_after_ms=1000)
    assert len(it.client.requests) == 1
    it.link.sent.clear()
    it.link.on_up()
    assert it.link.sent_ids() == [fresh.id]
    it.close()


async def test_flow_control_is_sent_to_the_scheduler() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    pending = it.client.infer(InferRequest(0, b"", []), it.on_response)
    number = pending.request.id
    it.link.sent.clear()
    pending.set_flow(paused=True)
    pending.set_flow(paused=False)
    assert it.link.sent == [FlowControl(number, paused=True), FlowControl(number, paused=False)]
    it.link.sent.clear()
    it.link.on_down()
    pending.set_flow(paused=True)
    it.link.on_up()
    it.link.on_items([InferResponse(number)])
    pending.set_flow(paused=True)
    assert it.link.sent_ids() == [number]
    it.close()


async def test_a_callback_that_fails_is_called_with_the_last_response() -> None:
    it = ClientOnFakeLink()
    it.client.open()
    seen: list[InferResponse] = []

    def fail(response: InferResponse) -> None:
        seen.append(response)
        if len(seen) == 1:
            raise ZeroDivisionError

    number = it.client.infer(InferRequest(0, b"", []), fail).request.id
    it.link.on_items([InferResponse(number, more=True), InferResponse(number)])
    outcomes = [(response.error and response.error.code, response.more) for response in seen]
    assert outcomes == [(None, True), (13, True), (None, False)]
    it.close()


async def test_without_a_reconnect_limit_pending_requests_fail_with_the_link() -> None:
    it = ClientOnFakeLink(reconnect_limit_s=None)
    it.client.open()
    it.infer()
    it.link.on_down()
    assert [response.error for response in it.responses] == [
        ErrorStatus(14, "the scheduler cannot be reached", retry_after_ms=1000)
    ]
    # New ones wait for the link.
    it.link.sent.clear()
    second = it.infer()
    assert it.link.sent_ids() == []
    it.link.on_up()
    assert it.link.sent_ids() == [second.id]
    it.close()


async def test_requests_wait_for_the_greeting_where_it_is_awaited() -> None:
    it = ClientOnFakeLink(await_greeting=True)
    it.client.open()
    first = it.infer()
    it.link.on_up()
    assert it.link.sent_ids() == []
    it.link.on_items([CachedModels((), "domain")])
    assert it.link.sent_ids() == [first.id]
    assert it.tensors.domains == ["domain"]
    # The scheduler does not share memory with this process.
    assert it.tensors.made_inline == [first]
    it.link.on_items([CachedModels((), "domain")])
    assert it.link.sent_ids() == []
    it.close()


async def test_a_closed_client_opens_no_link_and_refuses_requests() -> None:
    it = ClientOnFakeLink()
    it.close()
    it.client.open()
    it.infer()
    assert it.link.sent == []
    assert [response.error and response.error.code for response in it.responses] == [14]
