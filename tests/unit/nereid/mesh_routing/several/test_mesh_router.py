"""Requests to several schedulers; test_router_invariants.py has every order of events."""

from __future__ import annotations

import asyncio

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import (
    CachedModels,
    FlowControl,
    InferRequest,
    InferResponse,
    LogRules,
    Ownership,
    Release,
    moved_response,
)
from nereid.mesh_routing.control_calls import UNREACHABLE
from nereid.mesh_routing.several.mesh_router import NO_OWNER, MeshRouter
from nereid.shm.mappings import SegmentLostError
from tests.support.mesh.fake_link import IGNORE
from tests.support.mesh.fake_schedulers import FakeSchedulers
from tests.support.mesh.router_on_fakes import LIMIT_S, RouterOnFakes


class SharedTensors:
    """A TensorSharing of the domain "here"; segments of the process 9 are lost."""

    def __init__(self) -> None:
        self.shared = False
        self.made_inline: list[InferRequest] = []

    def on_scheduler_domain(self, domain: str) -> None:
        self.shared = domain == "here"

    def make_inline(self, request: InferRequest) -> None:
        self.made_inline.append(request)

    def open_response(self, response: InferResponse) -> None:
        if response.segment_name.startswith("9."):
            raise SegmentLostError("gone")

    def lost_response(self, response: InferResponse) -> InferResponse:
        return response


def connected() -> RouterOnFakes:
    """To a, which has m, and to b, which has n."""
    it = RouterOnFakes("a", "b")
    it.connect("a", "m")
    it.connect("b", "n")
    return it


def test_each_request_goes_to_who_has_its_model() -> None:
    it = connected()
    first, second, third = it.infer("m"), it.infer("n"), it.infer("n")
    assert it.sent("a") == [first.request.id]
    assert it.sent("b") == [second.request.id, third.request.id]
    it.respond("b", third.request.id)
    assert list(it.router.pending.requests) == [first.request.id, second.request.id]
    assert it.router.links_up == 2
    assert it.router.live_addresses() == ["a", "b"]


def test_a_lone_request_is_sent_at_once() -> None:
    it = connected()
    it.infer("m")
    assert it.schedulers.links["a"].sent_at_once == 1
    it.infer("n")
    assert it.schedulers.links["b"].sent_at_once == 0


def test_requests_wait_for_the_first_scheduler_and_for_what_it_announces() -> None:
    it = RouterOnFakes("a", "b")
    early = it.infer("n")
    assert not it.router.links_up
    it.connect("a", "m")
    # None names the model: any scheduler knows more.
    assert it.sent("a") == [early.request.id]
    it.move("a", early.request.id)
    assert it.sent("a") == []
    it.connect("b", "n")
    assert it.sent("b") == [early.request.id]
    assert not early.request.resent


def test_what_was_sent_over_a_broken_link_goes_to_the_next_owner_as_resent() -> None:
    it = connected()
    first, second, other = it.infer("m"), it.infer("m"), it.infer("n")
    assert it.sent("b") == [other.request.id]
    it.disconnect("a")
    it.disconnect("a")
    third = it.infer("m")
    assert it.sent("b") == []
    it.own("b", "m", "n")
    assert it.sent("b") == [each.request.id for each in (first, second, third)]
    assert [each.request.resent for each in (first, second, third, other)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_request_with_responses_fails_with_its_link() -> None:
    it = connected()
    begun, fresh = it.infer("m"), it.infer("m")
    it.respond("a", begun.request.id, more=True)
    it.disconnect("a")
    assert it.errors(begun) == ["the link to the scheduler broke, 1 responses into the request"]
    assert list(it.router.pending.requests) == [fresh.request.id]


def test_after_the_limit_a_lost_model_is_any_schedulers_business() -> None:
    it = connected()
    it.disconnect("a")
    it.clock.advance(LIMIT_S / 2)
    first = it.infer("m")
    it.clock.advance(1)
    second = it.infer("m", 7)
    assert it.router.pending.pending_bytes == 7
    it.clock.advance(LIMIT_S - 0.5)
    # By then the model is nobody's, and b knows what is wrong with it.
    assert it.sent("b") == [first.request.id, second.request.id]
    assert not it.errors(first)


def test_a_request_that_nobody_accepts_fails_at_the_limit() -> None:
    it = connected()
    first = it.infer("m")
    it.clock.advance(1)
    second = it.infer("m")
    it.move("a", first.request.id)
    it.clock.advance(1)
    it.move("a", second.request.id)
    it.clock.advance(LIMIT_S - 1)
    assert it.errors(first) == [NO_OWNER]
    assert not it.errors(second)
    it.clock.advance(1)
    assert it.errors(second) == [NO_OWNER]
    assert not it.router.pending.requests


def test_without_any_scheduler_requests_fail_at_the_limit_and_new_ones_at_once() -> None:
    it = connected()
    it.disconnect("a")
    it.clock.advance(1)
    it.disconnect("b")
    held = it.infer("n")
    it.clock.advance(LIMIT_S)
    assert it.errors(held) == [UNREACHABLE]
    assert it.errors(it.infer("m")) == [UNREACHABLE]
    it.connect("b", "m")
    accepted = it.infer("m")
    assert it.sent("b")[-1] == accepted.request.id


def test_a_moved_request_goes_to_who_names_its_model_in_the_same_frame_or_not() -> None:
    it = connected()
    first, second = it.infer("m"), it.infer("m")
    it.sent("a")
    it.own("b", "m", "n")
    it.move("a", first.request.id)
    assert it.sent("b") == [first.request.id]
    it.move("a", second.request.id, first.request.id)
    assert it.sent("b") == [second.request.id]
    assert not second.request.resent


def test_a_moved_request_waits_for_an_announcement_of_who_returned_it() -> None:
    it = connected()
    pending = it.infer("m")
    it.move("a", pending.request.id)
    it.own("b", "n")
    assert it.sent("a") == [pending.request.id]
    it.own("a", "m", epoch=3)
    assert it.sent("a") == [pending.request.id]
    it.on_items("a", moved_response(pending.request.id), LogRules(0, True, True, True, "default"))
    assert it.sent("a") == []


def test_who_returns_a_request_may_announce_its_model_in_the_same_frame() -> None:
    it = RouterOnFakes("a")
    it.connect("a")
    pending = it.infer("m")
    assert it.sent("a") == [pending.request.id]
    # The order within a frame is not known: it may have got the model after that.
    it.on_items("a", Ownership("a", 2, ("m",)), moved_response(pending.request.id))
    assert it.sent("a") == [pending.request.id]
    it.move("a", pending.request.id)
    assert it.sent("a") == []


def test_what_is_returned_by_who_does_not_have_it_is_ignored() -> None:
    it = connected()
    pending = it.infer("m")
    it.move("b", pending.request.id)
    it.own("b", "m", "n")
    assert it.sent("b") == []
    it.respond("a", pending.request.id)
    assert not it.errors(pending)


def test_schedulers_that_disagree_do_not_send_a_request_round_for_ever() -> None:
    it = connected()
    pending = it.infer("m")
    for epoch in range(2, 40):
        it.move("a", pending.request.id)
        it.own("a", "m", epoch=epoch)
    assert len(it.sent("a")) == 17
    assert it.errors(pending) == [NO_OWNER]


def test_a_leaving_scheduler_finishes_what_it_has() -> None:
    it = connected()
    before = it.infer("m")
    it.own("a", "m", leaving=True)
    after = it.infer("m")
    assert it.sent("a") == [before.request.id]
    it.own("b", "m", "n", epoch=3)
    assert it.sent("b") == [after.request.id]
    it.respond("a", before.request.id)
    assert not it.errors(before)
    assert it.responses[before.request.id]


def test_the_last_scheduler_serves_what_accepted_requests_need_until_its_end() -> None:
    """It waits for those, and they for the requests that their models make."""
    it = connected()
    it.own("b", "n", leaving=True)
    before = it.infer("m", caller=1)
    it.own("a", "m", leaving=True)
    held, nested, other = it.infer("m"), it.infer("m", caller=1), it.infer("n", caller=1)
    assert it.sent("a") == [before.request.id, nested.request.id]
    assert it.sent("b") == [other.request.id]
    # It gives the model to one that has come.
    it.move("a", nested.request.id)
    assert it.sent("a") == []
    it.own("b", "m", "n", epoch=3)
    assert it.sent("b") == [held.request.id, nested.request.id]


def test_what_models_ask_for_waits_for_another_scheduler_if_there_is_one() -> None:
    it = connected()
    it.own("a", "m", leaving=True)
    nested = it.infer("m", caller=1)
    assert it.sent("a") == []
    it.own("b", "m", "n", epoch=3)
    assert it.sent("b") == [nested.request.id]


def test_cancelled_requests_get_no_response_wherever_they_are() -> None:
    it = connected()
    sent, held = it.infer("m"), it.infer("n")
    it.disconnect("b")
    for pending in (sent, held, sent):
        pending.cancel()
    assert it.sent("a") == [sent.request.id, -sent.request.id]
    it.own("a", "m", "n")
    it.respond("a", sent.request.id)
    it.clock.advance(3 * LIMIT_S)
    assert it.sent("a") == []
    assert not any(it.responses.values())


def test_flow_control_goes_where_the_request_is() -> None:
    it = connected()
    pending, held = it.infer("n"), it.infer("m")
    it.disconnect("a")
    it.sent("a")
    it.sent("b")
    held.set_flow(paused=True)
    pending.set_flow(paused=True)
    assert it.schedulers.links["b"].sent == [FlowControl(pending.request.id, paused=True)]
    assert it.sent("a") == []
    it.respond("b", pending.request.id)
    pending.set_flow(paused=False)
    assert it.sent("b") == [pending.request.id]


def test_segments_go_back_to_the_scheduler_that_lent_them() -> None:
    it = RouterOnFakes("a", "b", tensors=SharedTensors())
    it.connect("a", "m", domain="here")
    it.connect("b", "n", domain="here")
    first, second = it.infer("m"), it.infer("n")
    it.sent("a")
    it.sent("b")
    it.on_items("a", InferResponse(first.request.id, segment_name="1.1"))
    it.on_items("b", InferResponse(second.request.id, segment_name="1.2"))
    it.router.pending.release_segments(("1.2",))
    it.router.pending.release_segments(("1.1",))
    assert it.schedulers.links["a"].sent == [Release(("1.1",))]
    assert it.schedulers.links["b"].sent == [Release(("1.2",))]
    # Nobody has opened it: its request was cancelled.
    it.on_items("b", InferResponse(99, segment_name="1.3"))
    assert it.schedulers.links["b"].sent[-1] == Release(("1.3",))
    third = it.infer("m")
    it.on_items("a", InferResponse(third.request.id, segment_name="1.4"))
    it.disconnect("a")
    it.schedulers.links["a"].sent.clear()
    it.schedulers.links["b"].sent.clear()
    it.own("b", "m", "n")
    assert it.sent("b") == []


def test_a_response_that_is_lost_with_its_executor_is_made_again() -> None:
    it = RouterOnFakes("a", tensors=SharedTensors())
    it.connect("a", "m", domain="here")
    pending = it.infer("m")
    it.on_items("a", InferResponse(pending.request.id, segment_name="9.1"))
    sent = it.schedulers.links["a"].sent
    assert sent == [pending.request, Release(("9.1",)), pending.request]
    assert pending.request.resent
    it.respond("a", pending.request.id)
    assert len(it.responses[pending.request.id]) == 1


def test_tensors_are_shared_with_those_schedulers_alone_that_share_memory() -> None:
    tensors = SharedTensors()
    it = RouterOnFakes("a", "b", tensors=tensors)
    it.connect("a", "m", domain="here")
    it.connect("b", "n", domain="elsewhere")
    assert tensors.shared
    shared, copied = it.infer("m"), it.infer("n")
    assert tensors.made_inline == [copied.request]
    it.disconnect("a")
    assert not tensors.shared
    it.own("b", "m", "n")
    assert tensors.made_inline == [copied.request, shared.request]


def test_a_scheduler_may_announce_again_which_models_want_digests() -> None:
    it = connected()
    it.on_items("a", CachedModels(("m",), "", b"key"))
    assert it.notices[-1] == CachedModels(("m",), digest_key=b"key")
    assert it.router.links_up == 2


def test_a_response_to_a_request_that_was_returned_counts() -> None:
    it = RouterOnFakes("a", tensors=SharedTensors())
    it.connect("a", "m", domain="here")
    pending = it.infer("m")
    it.move("a", pending.request.id)
    it.on_items("a", InferResponse(pending.request.id, segment_name="1.1"))
    assert len(it.responses[pending.request.id]) == 1
    it.schedulers.links["a"].sent.clear()
    it.own("a", "m", epoch=3)
    assert it.sent("a") == []


def test_a_response_in_the_frame_that_returns_a_request_counts() -> None:
    it = connected()
    pending = it.infer("m")
    response = InferResponse(pending.request.id)
    it.on_items("a", moved_response(pending.request.id), response)
    assert it.responses[pending.request.id] == [response]
    it.own("b", "m", "n", epoch=3)
    assert it.sent("b") == []


def test_requests_wait_while_the_only_scheduler_of_a_name_shuts_down() -> None:
    it = RouterOnFakes("a")
    it.on_items("a", CachedModels(()))
    returned = it.infer("m")
    it.on_items("a", Ownership("", 0, (), leaving=True), moved_response(returned.request.id))
    held = it.infer("m")
    it.sent("a")
    it.clock.advance(3 * LIMIT_S)
    it.disconnect("a")
    it.on_items("a", CachedModels(()))
    assert it.sent("a") == [returned.request.id, held.request.id]
    it.clock.advance(3 * LIMIT_S)
    assert not it.errors(returned) + it.errors(held)


def test_a_request_that_fails_by_the_limit_may_cancel_the_next() -> None:
    it = connected()
    it.own("a", leaving=True)
    it.own("b", leaving=True)
    first, second = it.infer("m"), it.infer("m")
    first.on_response = lambda _: second.cancel()
    it.clock.advance(LIMIT_S)
    assert not it.router.pending.requests
    assert not it.errors(second)


def test_addresses_come_and_go() -> None:
    it = connected()
    kept = it.infer("m")
    it.schedulers.set_addresses(["b", "c"])
    # It is still connected.
    assert not it.schedulers.closed_channels
    it.respond("a", kept.request.id)
    it.disconnect("a")
    assert it.schedulers.closed_channels == ["a"]
    it.schedulers.set_addresses(["b"])
    assert it.schedulers.closed_channels == ["a", "c"]
    assert it.schedulers.links["c"].closed
    it.schedulers.set_addresses([])
    it.schedulers.set_addresses(["b"])
    it.disconnect("b")
    assert it.schedulers.closed_channels == ["a", "c"]


def test_a_lost_scheduler_that_is_removed_is_waited_for_no_more() -> None:
    it = connected()
    it.disconnect("a")
    pending = it.infer("m")
    it.schedulers.set_addresses(["b"])
    assert it.sent("b") == [pending.request.id]


def test_what_is_no_head_goes_to_any_scheduler() -> None:
    it = connected()
    pending = it.router.pending.infer(InferRequest(0, b"\xff", []), it.on_response)
    assert it.sent("a") == [pending.request.id]


def test_closing_fails_what_is_pending() -> None:
    it = connected()
    sent, held = it.infer("m"), it.infer("n")
    it.disconnect("b")
    it.move("a", sent.request.id)
    it.router.close(Unavailable("the server is shutting down"))
    assert it.errors(sent) == it.errors(held) == ["the server is shutting down"]
    assert it.schedulers.links["a"].closed
    assert it.errors(it.infer("m")) == [UNREACHABLE]
    it.schedulers.set_addresses(["a", "b"])
    it.router.open()
    assert not it.router.links_up


def test_a_response_that_closes_the_router_is_the_last_of_its_frame() -> None:
    it = connected()
    moved = it.infer("m")
    closing = it.router.pending.infer(
        InferRequest(0, moved.request.head, []), lambda _: it.router.close(None)
    )
    moved_back, last = moved_response(moved.request.id), InferResponse(closing.request.id)
    it.on_items("a", moved_back, last, Ownership("a", 3, ("m",)))
    assert it.errors(moved) == [UNREACHABLE]


def test_a_failure_that_cancels_others_is_harmless() -> None:
    it = connected()
    others = [it.infer("m")]
    it.move("a", others[0].request.id)
    failing = it.infer("m")
    it.respond("a", failing.request.id, more=True)

    def cancel_others(_: InferResponse) -> None:
        for each in others:
            each.cancel()

    failing.on_response = cancel_others
    others.append(it.infer("m"))
    it.disconnect("a")
    assert not it.router.pending.requests
    it.clock.advance(2 * LIMIT_S)
    assert not any(map(it.errors, others))


async def test_draining_waits_for_held_requests() -> None:
    it = connected()
    assert await it.router.pending.drain(0)
    pending = it.infer("m")
    it.move("a", pending.request.id)
    waiting = asyncio.ensure_future(it.router.pending.drain(5))
    await asyncio.sleep(0)
    it.clock.advance(LIMIT_S)
    assert await waiting
    assert it.errors(pending) == [NO_OWNER]


async def test_it_runs_by_the_event_loops_clock() -> None:
    router = MeshRouter(FakeSchedulers(), SharedTensors(), 0.01, IGNORE)
    router.open()
    router.open()
    failed = asyncio.Event()
    router.pending.infer(InferRequest(0, b"", []), lambda _: failed.set())
    await asyncio.wait_for(failed.wait(), 5)
    router.close()
