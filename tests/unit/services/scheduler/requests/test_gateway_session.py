"""A gateway's session: refusals, bugs and cancellations."""

import gc
import time
import weakref

import pytest

from nereid.core.errors import INTERNAL_MESSAGE, Unavailable
from nereid.core.messages import Cancel
from tests.support.scheduler.admission_world import AdmissionWorld, request


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
    model.close()


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
    it.gateway.on_items([Cancel(99)])
    assert it.link.sent == []
