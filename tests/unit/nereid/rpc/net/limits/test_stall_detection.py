"""Stalled peers, as opposed to slow ones."""

from __future__ import annotations

from nereid.rpc.net.limits.stall_detection import IdleWatch, StallWatch, UploadLimits, UploadWatch


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


def test_an_upload_must_keep_a_rate_over_each_window() -> None:
    watch = UploadWatch(UploadLimits(min_bytes_per_s=10, window_s=10))
    for received, now, overdue in (
        (0, 100, False),
        (99, 109, False),
        (100, 110, False),
        # Fast once is not fast for ever.
        (100_000, 120, False),
        (100_099, 130, True),
    ):
        assert watch.overdue(received, now) is overdue, now
    watch.restart()
    assert not watch.overdue(100_099, 200)
    assert not watch.overdue(100_199, 210)
    patient = UploadWatch(UploadLimits())
    assert not any(patient.overdue(1, now) for now in (1, 100, 1e9))


def test_an_upload_has_a_total_time_beginning_where_it_was_restarted() -> None:
    watch = UploadWatch(UploadLimits(total_s=50))
    assert not watch.overdue(0, 100)
    assert not watch.overdue(1 << 30, 149)
    watch.restart()
    assert not watch.overdue(0, 150)
    assert not watch.overdue(0, 199)
    assert watch.overdue(1 << 30, 200)


def test_a_peer_is_idle_when_nothing_changes_while_it_is_not_in_use() -> None:
    watch = IdleWatch(10)
    for activity, now, in_use, idle in (
        (0, 100, False, False),
        (0, 109, False, False),
        (1, 109, False, False),
        (1, 118, True, False),
        (1, 127, False, False),
        (1, 128, False, True),
    ):
        assert watch.idle_too_long(activity, now, in_use=in_use) is idle, now
    assert not IdleWatch(None).idle_too_long(0, 1e9, in_use=False)
