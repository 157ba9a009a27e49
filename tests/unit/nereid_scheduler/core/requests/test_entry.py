"""An entry's states, and its responses."""

import pytest

from nereid.core.wire.messages import InferResponse
from nereid_scheduler.core.requests.entry import TRANSITIONS, RequestState
from tests.support.scheduler.samples import entry_of


def test_every_state_is_reached_and_only_responded_is_final() -> None:
    assert set(TRANSITIONS) == set(RequestState)
    reached = {RequestState.RECEIVED}.union(*TRANSITIONS.values())
    assert reached == set(RequestState)
    assert [state for state, following in TRANSITIONS.items() if not following] == [
        RequestState.RESPONDED
    ]


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    entry = entry_of()
    entry.respond(InferResponse(0, b"head"))
    assert "a response could not be sent" in caplog.text
