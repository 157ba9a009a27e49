"""Copies of requests within their budgets: the scheduler's end of the link is the test."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nereid.comparison.shadow import read_shadow
from nereid.core.errors import worker_lost_message
from nereid.core.wire.messages import (
    NO_CAPACITY_FOR_COPY,
    CachedModels,
    Cancel,
    ErrorStatus,
    InferRequest,
    InferResponse,
    ModelShadows,
    SequencePlace,
)
from nereid.mesh_routing.access import OneScheduler
from nereid.pb import kserve_pb2
from nereid.rpc import Handlers
from nereid.rpc.net.limits.budget import BudgetLimits, ByteBudget
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.extras.shadows.exchanges import ModelCounts
from nereid_gateway.extras.shadows.shadows import ELSEWHERE, SEQUENCE, Shadows
from nereid_gateway.plane.upstream import Limits, Upstream
from nereid_scheduler.versions.sequence_places import SequencePlaces
from tests.support.mesh.fake_link import FakeLink
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import until

SEQUENCE_START: dict[str, Any] = {"sequence_id": 7, "sequence_start": True}
SEQUENCE_GOES_ON: dict[str, Any] = {"sequence_id": 7}
RESPONSE = kserve_pb2.ModelInferResponse(model_name="m", model_version="1")
RESPONSE.outputs.add(name="O", datatype="UINT8", shape=[3])


class Site:
    """A gateway's upstream with a shadow of the model m."""

    def __init__(
        self, max_pending: int = 100, places: SequencePlaces | None = None, **limits: Any
    ) -> None:
        """places: the scheduler's, which another site may share."""
        self._places = SequencePlaces() if places is None else places
        self._place_of: dict[int, SequencePlace | None] = {}
        self.reported: dict[str, ModelCounts] = {}
        self.shadows = Shadows(self._report, **limits)
        self.link = FakeLink()
        self.responses: list[InferResponse] = []
        bounds = BudgetLimits(total_bytes=1 << 30, client_bytes=1 << 30, connection_bytes=1 << 30)
        self.upstream = Upstream(
            OneScheduler(self.link.open, LocalChannel(Handlers())),
            Limits(max_pending, 60.0),
            TensorMemory(0),
            ByteBudget(bounds, lambda: 0),
            shadows=self.shadows,
        )
        self.upstream.start()
        self.link.on_items([CachedModels(())])
        self.set_shadow(to="version:2", timeout_s=60)

    async def _report(self, model: str, _: str, counts: ModelCounts) -> None:
        self.reported[model] = counts

    def set_shadow(self, **document: Any) -> None:
        self.link.on_items([ModelShadows((("m", read_shadow(document).text()),))])

    def infer(self, parameters: dict[str, Any] | None = None, size_bytes: int = 1) -> int:
        """Send a client's request; its number."""
        message = kserve_pb2.ModelInferRequest(model_name="m")
        message.inputs.add(name="I", datatype="UINT8", shape=[size_bytes])
        request = ClientRequest(0, message.SerializeToString(), [bytes(size_bytes)], "", parameters)
        self.upstream.infer(request, self.responses.append)
        if request.wants_sequence_place or self._places:
            self._place_of[request.id] = self._places.count(request)
        return request.id

    def respond(self, number: int, raw: bytes = b"abc", error: ErrorStatus | None = None) -> None:
        head = b"" if error else RESPONSE.SerializeToString()
        response = InferResponse(number, head, [] if error else [raw], error)
        response.sequence_place = self._place_of.get(number)
        self.link.on_items([response])

    def exchange(self, parameters: dict[str, Any] | None = None, size_bytes: int = 1) -> None:
        """A client's request, and its response."""
        self.respond(self.infer(parameters, size_bytes))

    def copies(self) -> list[InferRequest]:
        """The copies that were sent since the last call."""
        sent, self.link.sent = self.link.sent, []
        return [each for each in sent if isinstance(each, InferRequest) and each.is_shadow]

    def cancelled(self) -> list[int]:
        return [each.id for each in self.link.sent if isinstance(each, Cancel)]

    async def counts(self, compared: int, **not_compared: int) -> ModelCounts:
        """Wait until so many copies are counted; the counts."""

        def has_all() -> bool:
            counts = self.reported.get("m")
            return counts is not None and (
                counts.compared + sum(counts.not_compared.values())
                == compared + sum(not_compared.values())
            )

        await until(has_all)
        counts = self.reported["m"]
        assert counts.compared == compared
        assert sorted(counts.not_compared.values()) == sorted(not_compared.values())
        return counts


@asynccontextmanager
async def comparing_site(places: SequencePlaces | None = None) -> AsyncIterator[Site]:
    made = Site(
        max_in_flight=2, max_copy_bytes=4000, max_held_bytes=6000, stuck_s=20.0, places=places
    )
    await until(lambda: made.shadows.is_comparing)
    yield made
    await made.shadows.close()
    made.upstream.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with comparing_site() as made:
        yield made


@pytest.fixture
async def sites() -> AsyncIterator[tuple[Site, Site]]:
    """Two gateways of one mesh."""
    places = SequencePlaces()
    async with comparing_site(places) as one, comparing_site(places) as other:
        yield one, other


async def test_a_copy_follows_the_response_and_both_are_compared(site: Site) -> None:
    number = site.infer()
    site.upstream.pending.requests[number].request.callable_models = b"rights"
    assert site.copies() == []
    site.respond(number)
    (copy,) = site.copies()
    assert copy.callable_models == b"rights"
    head = kserve_pb2.ModelInferRequest.FromString(copy.head)
    assert (head.model_name, head.model_version, copy.payloads) == ("m", "2", [b"\0"])
    assert copy.deadline is not None
    site.respond(copy.id, b"abd")
    assert [response.payloads for response in site.responses] == [[b"abc"]]
    counts = await site.counts(1)
    assert (counts.differing, counts.kinds) == (1, {"value": 1})
    report = await site.shadows.report("m")
    assert report is not None
    assert report["models"][0]["differences"][0]["name"] == "O"
    assert await site.shadows.report("n") is None


async def test_failed_requests_and_those_beyond_the_budgets_have_no_copy(site: Site) -> None:
    site.respond(site.infer(), error=ErrorStatus(3, "refused"))
    site.exchange(size_bytes=5000)
    # Two are in flight, and hold the bytes of two.
    site.exchange(size_bytes=2900)
    site.exchange(size_bytes=2900)
    site.exchange(size_bytes=2900)
    copies = site.copies()
    assert len(copies) == 2
    site.exchange()
    for copy in copies:
        site.respond(copy.id)
    assert len(site.responses) == 6
    counts = await site.counts(2, failed=1, large=1, full=2)
    assert counts.not_compared["too many copies were in flight"] == 2
    # Their bytes are free again.
    del copies, copy
    site.link.sent.clear()
    gc.collect()
    site.exchange(size_bytes=2900)
    assert len(site.copies()) == 1


async def test_clients_that_leave_free_what_was_held(site: Site) -> None:
    for _ in range(20):
        request = site.infer(size_bytes=3000)
        site.upstream.pending.cancel(request)
    gc.collect()
    site.exchange(size_bytes=3000)
    assert len(site.copies()) == 1


async def test_a_copy_without_a_response_is_cancelled(site: Site) -> None:
    site.set_shadow(to="version:2", timeout_s=0.01)
    site.exchange()
    (copy,) = site.copies()
    await until(site.cancelled)
    assert site.cancelled() == [copy.id]
    counts = await site.counts(0, timeout=1)
    assert counts.not_compared == {"the copy timed out": 1}


async def test_a_shadow_without_capacity_has_a_pause(site: Site) -> None:
    site.exchange()
    (copy,) = site.copies()
    site.respond(copy.id, error=NO_CAPACITY_FOR_COPY)
    site.exchange()
    assert site.copies() == []
    counts = await site.counts(0, busy=2)
    assert counts.not_compared == {"the shadow was busy": 2}
    site.exchange()
    assert len(site.copies()) == 1


async def test_a_shadow_that_crashes_has_a_long_pause(site: Site) -> None:
    site.exchange()
    (copy,) = site.copies()
    site.respond(copy.id, error=ErrorStatus(13, worker_lost_message("m_0_0"), accepted=True))
    site.exchange()
    site.exchange({"sequence_id": 7, "sequence_start": True})
    assert site.copies() == []
    # The crash itself is a difference.
    counts = await site.counts(1, paused=2)
    assert counts.kinds == {"status": 1}
    assert counts.not_compared == {"copies pause after a crash or a timeout": 2}


async def test_a_sequence_is_copied_in_order_and_from_its_start(site: Site) -> None:
    site.exchange(SEQUENCE_START)
    site.exchange({"sequence_id": 7})
    site.exchange({"sequence_id": 7, "sequence_end": True})
    seen = []
    for _ in range(3):
        (copy,) = site.copies()
        seen.append(copy.parameters)
        site.respond(copy.id)
    assert seen == [SEQUENCE_START, {"sequence_id": 7}, {"sequence_id": 7, "sequence_end": True}]
    await site.counts(3)


async def test_a_sequence_of_another_gateway_is_ended_at_the_shadow(
    sites: tuple[Site, Site],
) -> None:
    one, other = sites
    one.exchange(SEQUENCE_START)
    (first,) = one.copies()
    one.respond(first.id)
    other.exchange(SEQUENCE_GOES_ON)
    (end,) = other.copies()
    assert (end.payloads, end.parameters) == ([], SEQUENCE_GOES_ON)
    assert end.error_status is not None
    assert end.sequence_owner == first.sequence_owner
    assert end.copied_sequence == first.copied_sequence != 0
    other.exchange(SEQUENCE_GOES_ON)
    other.exchange({"sequence_id": 7, "sequence_end": True})
    assert other.copies() == []
    assert (await other.counts(0, elsewhere=1)).not_compared == {ELSEWHERE: 1}
    # A shadow that is paused gets nothing.
    other.set_shadow(to="version:2", percent=0)
    other.exchange({"sequence_id": 8})
    assert other.copies() == []


async def test_a_sequence_that_no_gateway_copies_is_not_ended(site: Site) -> None:
    # Its START came before the shadow was set.
    site.exchange(SEQUENCE_GOES_ON)
    assert site.copies() == []
    assert (await site.counts(0, elsewhere=1)).not_compared == {ELSEWHERE: 1}


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("size_bytes", [1, 5000])
async def test_a_request_of_a_later_sequence_is_no_copy_of_an_earlier_one(
    sites: tuple[Site, Site], is_ended: bool, size_bytes: int
) -> None:
    one, other = sites
    one.exchange(SEQUENCE_START)
    (first,) = one.copies()
    one.respond(first.id)
    if is_ended:
        other.exchange({"sequence_id": 7, "sequence_end": True})
    # One that is too large is not copied.
    other.exchange(SEQUENCE_START, size_bytes)
    one.exchange(SEQUENCE_GOES_ON)
    (end,) = one.copies()
    assert end.error_status is not None
    assert end.copied_sequence == first.copied_sequence
    counts = await one.counts(1, sequence=1)
    assert (counts.differing, counts.not_compared) == (0, {SEQUENCE: 1})
    # The copies at the other gateway lack this request.
    other.copies()
    other.exchange(SEQUENCE_GOES_ON)
    assert [each for each in other.copies() if each.error_status is None] == []


async def test_copies_that_wait_do_not_join_a_later_sequence(sites: tuple[Site, Site]) -> None:
    one, other = sites
    one.exchange(SEQUENCE_START)
    one.exchange(SEQUENCE_GOES_ON)
    (first,) = one.copies()
    other.exchange(SEQUENCE_START)
    (later,) = other.copies()
    one.respond(first.id)
    (second,) = one.copies()
    assert second.copied_sequence == first.copied_sequence != later.copied_sequence


@pytest.mark.parametrize(("code", "ends"), [(None, 0), (3, 1)])
async def test_a_sequence_whose_end_fails_is_ended(site: Site, code: int | None, ends: int) -> None:
    site.exchange({**SEQUENCE_START, "sequence_end": True})
    (copy,) = site.copies()
    # Later steps of an ensemble have not got it.
    site.respond(
        copy.id, error=None if code is None else ErrorStatus(code, "a step has refused it")
    )
    sent = site.copies()
    assert [each.error_status is not None for each in sent] == [True] * ends
    await site.counts(1)


async def test_a_sequence_with_a_gap_is_copied_no_further(site: Site) -> None:
    site.exchange(SEQUENCE_START)
    (first,) = site.copies()
    site.respond(first.id)
    site.upstream.pending.cancel(site.infer({"sequence_id": 7}))
    site.exchange({"sequence_id": 7})
    site.exchange({"sequence_id": 7})
    # The shadow is to wait for no further one.
    (end,) = site.copies()
    assert (end.payloads, end.parameters) == ([], {"sequence_id": 7})
    assert end.error_status is not None
    assert end.sequence_owner == first.sequence_owner != ""
    counts = await site.counts(1, sequence=1)
    assert counts.not_compared == {"a request of its sequence was not copied": 1}
    # The next one begins anew.
    site.exchange(SEQUENCE_START)
    assert len(site.copies()) == 1


async def test_responses_of_the_shadow_itself_are_not_compared(site: Site) -> None:
    site.set_shadow(to="version:1")
    site.exchange()
    assert site.copies() == []


async def test_copies_take_no_place_in_the_limit_of_pending_requests() -> None:
    site = Site(max_pending=8, max_in_flight=8)
    await until(lambda: site.shadows.is_comparing)
    try:
        for _ in range(8):
            site.exchange()
        assert len(site.copies()) == 8
        for _ in range(4):
            site.infer()
        assert Counter(response.error for response in site.responses) == {None: 8}
    finally:
        site.shadows.stop()
        # All copies are cancelled.
        assert len(site.cancelled()) == 8
        await site.shadows.close()
        site.upstream.close()


async def test_a_process_that_ends_is_replaced(site: Site) -> None:
    site.exchange()
    (copy,) = site.copies()
    site.respond(copy.id)
    await site.counts(1)
    (pid,) = children_of_this_process()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not site.shadows.is_comparing)
    await until(lambda: site.shadows.is_comparing)
    site.reported.clear()
    site.exchange()
    (copy,) = site.copies()
    site.respond(copy.id)
    await site.counts(1)
    # Without a shadow there is no process.
    site.link.on_items([ModelShadows(())])
    await until(lambda: not children_of_this_process())
    site.exchange()
    assert site.copies() == []


def children_of_this_process() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"nereid_gateway.extras.shadows" in command.split(b"\0"):
                found.append(int(pid))
    return found
