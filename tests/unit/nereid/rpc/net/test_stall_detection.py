"""Stalled peers, as opposed to slow ones."""

from __future__ import annotations

from nereid.rpc.net.stall_detection import StallWatch


def test_a_stall_is_nothing_read_for_too_long() -> None:
    watch = StallWatch(10)
    for waiting_bytes, now, stalled in (
        (0, 100, False),
        (50, 101, False),
        (50, 109, False),
        (40, 110, False),  # slow, but alive
        (60, 119, False),
        (60, 120, True),
        (0, 121, False),
        (60, 122, False),
        (60, 131, False),
        (60, 132, True),
    ):
        assert watch.stalled(waiting_bytes, now) is stalled, now
    patient = StallWatch(None)
    assert not any(patient.stalled(1, now) for now in (1, 1e9))
