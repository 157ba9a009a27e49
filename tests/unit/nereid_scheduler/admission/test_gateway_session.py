"""A gateway's session: refusals, bugs and cancellations."""

import gc
import time
import weakref

import pytest

from nereid.core.errors import INTERNAL_MESSAGE, Unavailable
from nereid.core.wire.messages import Cancel
from tests.support.scheduler.world import AdmissionWorld, add_instance, batches, request, turn


async def test_a_bug_in_one_request_is_an_internal_error_of_it_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = AdmissionWorld()
    model = it.ready()
    bad = request(1)
    bad.payloads = [None]  # type: ignore[list-item]
    it.gateway.on_items([bad, request(2)])
    assert it.errors() == [(1, INTERNAL_MESSAGE)]
    assert "could not be admitted" in caplog.text
    model.fail_all(Unavailable("over"))
    assert it.errors()[1:] == [(2, "over")]


class Lease:
    """Stands for a segment."""


async def test_a_refused_request_is_freed_at_once() -> None:
    it = AdmissionWorld()
    it.ready()
    lease = Lease()
    reference = weakref.ref(lease)
    gc.disable()
    try:
        it.gateway.on_items([request(1, deadline=time.monotonic() - 1, lease=lease)])
        del lease
        assert it.errors() == [(1, "the deadline passed before the request arrived")]
        assert reference() is None
    finally:
        gc.enable()


async def test_cancelling_an_unknown_request_is_harmless() -> None:
    it = AdmissionWorld()
    it.gateway.on_items([])
    it.gateway.on_items([Cancel(99)])
    assert it.link.sent == []


async def test_an_idle_model_begins_with_the_last_request_of_a_frame() -> None:
    it = AdmissionWorld()
    model = it.ready()
    it.gateway.on_items([request(1)])  # its head is not known yet
    await turn()
    first, second = (add_instance(model, f"i{number}", number)[1] for number in range(2))
    await turn()
    it.gateway.on_items([request(2), Cancel(99), request(3)])
    assert (batches(first), batches(second)) == ([[1]], [[2]])


async def test_a_request_is_sent_when_its_frame_is_recorded() -> None:
    it = AdmissionWorld()
    model = it.ready()
    it.gateway.on_items([request(1)])
    it.gateway.on_items([Cancel(1)])
    _, stream = add_instance(model)
    await turn()
    it.gateway.on_items([request(2), Cancel(99)])
    assert [member.id for member in stream.sent[0].members] == [2]
