"""The stream states of RFC 9113 5.1, as far as records have them."""

from __future__ import annotations

import pytest

from nereid.rpc.http2.stream import (
    LOCAL_CLOSED,
    REMOTE_CLOSED,
    TRANSITIONS,
    Stream,
    StreamEvent,
    StreamState,
    StreamTable,
)


@pytest.mark.parametrize("state", StreamState)
def test_each_event_closes_its_sides(state: StreamState) -> None:
    sides = {
        StreamEvent.END_SENT: LOCAL_CLOSED,
        StreamEvent.END_RECEIVED: REMOTE_CLOSED,
        StreamEvent.RESET: LOCAL_CLOSED | REMOTE_CLOSED,
    }
    for event, closed in sides.items():
        after = TRANSITIONS[event].get(state)
        if after is None:
            # A side ends once.
            assert state & closed
        else:
            assert after == state | closed


def test_idle_streams_and_remembered_resets() -> None:
    table: StreamTable[Stream] = StreamTable()
    table.last_id = 5
    assert [table.is_idle(stream_id) for stream_id in (1, 4, 5, 6, 7)] == [
        *(False, True, False, True, True)
    ]
    for stream_id in range(1, 2001, 2):
        table.remember_reset(stream_id)
    assert table.was_reset_here(1999)
    assert not table.was_reset_here(1)
