"""Requests to the only scheduler, which names no models; test_mesh_router.py has several."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    LogRules,
    Ownership,
    moved_response,
)
from nereid.mesh_routing.control_calls import UNREACHABLE
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter
from tests.support.mesh.fake_link import IGNORE, FakeLink, UnsharedTensors
from tests.support.mesh.fake_schedulers import FakeClock

if TYPE_CHECKING:
    import pytest

    from nereid.core.wire.messages import Notice


class OneOnFakeLink:
    """A router to one scheduler, and the responses that it delivered."""

    def __init__(self, *, reconnect_limit_s: float | None = 60.0) -> None:
        self.link = FakeLink()
        self.clock = FakeClock()
        self.tensors = UnsharedTensors()
        self.notices: list[Notice] = []
        self.responses: list[InferResponse] = []
        self.router = OnlySchedulerRouter(
            self.link.open,
            self.tensors,
            reconnect_limit_s,
            IGNORE._replace(on_notice=self.notices.append),
            self.clock,
        )
        self.router.open()
        self.greet()

    def greet(self) -> None:
        """The link is up."""
        self.link.on_items([CachedModels(())])

    def infer(self) -> InferRequest:
        request = InferRequest(0, b"", [])
        self.router.pending.infer(request, self.on_response)
        return request

    def on_response(self, response: InferResponse) -> None:
        self.responses.append(response)


LEAVING = Ownership("", 0, (), leaving=True)


def test_a_scheduler_that_shuts_down_gets_no_new_requests() -> None:
    it = OneOnFakeLink()
    executing, returned, cancelled = it.infer(), it.infer(), it.infer()
    it.link.sent.clear()
    it.link.on_items([LEAVING])
    it.link.on_items([LEAVING])
    held = it.infer()
    # What it has goes on as ever.
    it.router.pending.set_flow(executing.id, paused=True)
    it.router.pending.cancel(cancelled.id)
    assert it.link.sent == [FlowControl(executing.id, paused=True), Cancel(cancelled.id)]
    it.link.on_items([moved_response(returned.id), moved_response(cancelled.id)])
    assert not it.responses
    it.link.sent.clear()
    it.link.on_down()
    it.link.on_down()
    assert not it.link.sent
    it.greet()
    assert it.link.sent_ids() == [executing.id, returned.id, held.id]
    # Only what may have begun is marked.
    assert [each.resent for each in (executing, returned, held)] == [True, False, False]
    it.link.on_items([InferResponse(each.id) for each in (executing, returned, held)])
    assert [each.id for each in it.responses] == [executing.id, returned.id, held.id]
    assert it.link.sent_ids() == []
    later = it.infer()
    assert it.link.sent_ids() == [later.id]


def test_requests_wait_for_as_long_as_the_scheduler_takes_to_shut_down() -> None:
    it = OneOnFakeLink()
    it.link.on_items([LEAVING])
    held = it.infer()
    it.clock.advance(200)
    assert not it.responses
    it.link.on_down()
    it.clock.advance(30)
    it.greet()
    assert it.link.sent_ids() == [held.id]
    it.clock.advance(200)
    assert not it.responses


def test_a_scheduler_may_say_that_it_leaves_and_return_requests_in_one_frame() -> None:
    it = OneOnFakeLink()
    executing, returned, later = it.infer(), it.infer(), it.infer()
    it.link.sent.clear()
    it.link.on_items([LEAVING, moved_response(returned.id)])
    assert not it.responses
    it.link.on_down()
    it.greet()
    # In the order of their arrival, though one was taken out and put back.
    assert it.link.sent_ids() == [executing.id, returned.id, later.id]
    assert [each.resent for each in (executing, returned, later)] == [True, False, True]


def test_who_does_not_wait_for_a_scheduler_ignores_that_it_shuts_down() -> None:
    it = OneOnFakeLink(reconnect_limit_s=None)
    it.link.on_items([LEAVING])
    request = it.infer()
    assert it.link.sent_ids() == [request.id]
    it.link.on_items([moved_response(request.id)])
    assert [each.id for each in it.responses] == [request.id]


def test_what_a_scheduler_returns_that_goes_on_is_refused() -> None:
    """It is one of several, and this gateway was told of it alone."""
    it = OneOnFakeLink()
    request = it.infer()
    it.link.on_items([Ownership("a", 1, ("other",)), moved_response(request.id)])
    assert [each.error and each.error.code for each in it.responses] == [14]


def test_after_the_limit_requests_fail_until_the_scheduler_is_back() -> None:
    it = OneOnFakeLink()
    it.infer()
    it.link.on_down()
    it.clock.advance(70)
    it.infer()
    assert [each.error and each.error.message for each in it.responses] == [UNREACHABLE] * 2
    it.greet()
    later = it.infer()
    it.clock.advance(70)
    assert it.link.sent_ids()[1:] == [later.id]
    assert len(it.responses) == 2


def test_nothing_is_sent_after_its_end() -> None:
    it = OneOnFakeLink()
    sent = it.infer()
    it.router.close(Unavailable("the server is shutting down"))
    it.greet()
    it.link.on_down()
    it.router.open()
    refused = it.infer()
    assert it.link.closed
    assert it.link.sent_ids() == [sent.id]
    assert [(each.id, each.error and each.error.message) for each in it.responses] == [
        (sent.id, "the server is shutting down"),
        (refused.id, UNREACHABLE),
    ]
    never_opened = OnlySchedulerRouter(it.link.open, it.tensors, 1.0, IGNORE, it.clock)
    never_opened.close()
    assert not never_opened.links_up


def test_a_lost_response_is_made_by_the_next_process_if_the_scheduler_shuts_down() -> None:
    it = OneOnFakeLink()
    it.tensors.lost = True
    first, second = it.infer(), it.infer()
    it.link.on_items([InferResponse(first.id, segment_name="9.1")])
    it.link.on_items([LEAVING, InferResponse(second.id, segment_name="9.2")])
    requests = [each for each in it.link.sent if isinstance(each, InferRequest)]
    assert requests == [first, second, first]
    it.link.sent.clear()
    it.link.on_down()
    it.greet()
    assert it.link.sent == [first, second]
    assert first.resent
    assert second.resent


def test_a_response_that_no_memory_is_left_for_is_an_error_and_others_are_delivered() -> None:
    it = OneOnFakeLink()
    it.greet()
    it.tensors.full = True
    large, small = it.infer(), it.infer()
    it.link.on_items([InferResponse(large.id, segment_name="9.1"), InferResponse(small.id)])
    assert [(each.id, each.error and each.error.message) for each in it.responses] == [
        (large.id, "lost"),
        (small.id, None),
    ]


def test_greetings_and_rules_are_passed_on_whenever_they_come() -> None:
    it = OneOnFakeLink()
    it.greet()
    rules = LogRules(0, True, True, True, "default")
    it.link.on_items([rules])
    assert it.notices == [CachedModels(()), CachedModels(()), rules]
    assert it.router.links_up == 1
    assert it.link.sent == []


def test_a_scheduler_that_shares_memory_gets_what_lies_in_it() -> None:
    it = OneOnFakeLink()
    it.link.on_down()
    held = it.infer()
    it.tensors.shared = True
    it.greet()
    assert it.link.sent == [held]
    assert it.tensors.made_inline == []


def test_no_two_clients_number_their_requests_alike() -> None:
    clients = [OneOnFakeLink() for _ in range(20)]
    ids = [it.infer().id for it in clients for _ in range(2)]
    assert len(set(ids)) == len(ids)
    assert max(ids) < 1 << 63


async def test_draining_waits_for_responses_and_cancellations() -> None:
    it = OneOnFakeLink()
    assert await it.router.pending.drain(0)
    first = it.infer()
    second = it.router.pending.infer(InferRequest(0, b"", []), it.on_response)
    assert not await it.router.pending.drain(0.001)
    waiting = asyncio.ensure_future(it.router.pending.drain(5))
    await asyncio.sleep(0)
    it.link.on_items([InferResponse(first.id)])
    assert not waiting.done()
    second.cancel()
    assert await waiting


def test_a_callback_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    it = OneOnFakeLink()
    seen: list[InferResponse] = []

    def fail(response: InferResponse) -> None:
        seen.append(response)
        raise ZeroDivisionError

    bad = it.router.pending.infer(InferRequest(0, b"", []), fail)
    good = it.infer()
    it.link.on_items([InferResponse(bad.request.id), InferResponse(good.id)])
    assert [response.id for response in it.responses] == [good.id]
    # It is called once more, with an internal error for its client.
    assert [response.error and response.error.code for response in seen] == [None, 13]
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_that_fails_is_called_with_the_last_response() -> None:
    it = OneOnFakeLink()
    seen: list[InferResponse] = []

    def fail(response: InferResponse) -> None:
        seen.append(response)
        if len(seen) == 1:
            raise ZeroDivisionError

    number = it.router.pending.infer(InferRequest(0, b"", []), fail).request.id
    it.link.on_items([InferResponse(number, more=True), InferResponse(number)])
    outcomes = [(response.error and response.error.code, response.more) for response in seen]
    assert outcomes == [(None, True), (13, True), (None, False)]


def test_without_a_reconnect_limit_pending_requests_fail_with_the_link() -> None:
    it = OneOnFakeLink(reconnect_limit_s=None)
    it.infer()
    it.link.on_down()
    assert [response.error for response in it.responses] == [
        ErrorStatus(14, "the scheduler cannot be reached", retry_after_ms=1000)
    ]
    # New ones wait for the link.
    it.link.sent.clear()
    second = it.infer()
    assert it.link.sent_ids() == []
    it.greet()
    assert it.link.sent_ids() == [second.id]


def test_it_is_unknown_whether_a_lone_request_shares_memory_until_the_scheduler_greets() -> None:
    it = OneOnFakeLink()
    it.link.on_down()
    held = it.infer()
    assert it.link.sent == []
    assert it.tensors.made_inline == []
    it.greet()
    assert it.link.sent == it.tensors.made_inline == [held]
