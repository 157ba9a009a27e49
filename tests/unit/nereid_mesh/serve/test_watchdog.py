"""Which children hang, from their heartbeats."""

from __future__ import annotations

import os

from nereid.process.liveness import VARIABLE, is_stopped
from nereid_mesh.serve.watchdog import HeartbeatPipe, Watchdog


def silence(watchdog: Watchdog, start: int, seconds: int, *, stopped: bool = False) -> int | None:
    """The second at which a child that beats no more after `start` counts as hung."""
    for now in range(start, start + seconds):
        if watchdog.is_hung(now, beat=False, stopped=stopped):
            return now - start
    return None


def test_a_child_without_heartbeats_hangs() -> None:
    watchdog = Watchdog(10, may_block=False)
    assert not any(watchdog.is_hung(now, beat=True, stopped=False) for now in range(100))
    assert silence(watchdog, 100, 60) == 9


def test_a_child_that_has_not_begun_does_not_hang() -> None:
    watchdog = Watchdog(10, may_block=False)
    assert silence(watchdog, 0, 1000) is None


def test_a_child_that_models_may_block_has_longer_unless_it_is_stopped() -> None:
    for stopped, seconds in ((False, 299), (True, 9)):
        watchdog = Watchdog(10, may_block=True)
        assert not watchdog.is_hung(0, beat=True, stopped=False)
        assert silence(watchdog, 1, 1000, stopped=stopped) == seconds


def test_after_a_suspension_of_the_machine_the_time_begins_anew() -> None:
    watchdog = Watchdog(10, may_block=False)
    assert not watchdog.is_hung(0, beat=True, stopped=False)
    assert silence(watchdog, 1, 5) is None
    assert not watchdog.is_hung(5000, beat=False, stopped=False)
    assert silence(watchdog, 5001, 60) == 9


def test_a_pipe_reports_heartbeats_once() -> None:
    pipe = HeartbeatPipe()
    assert not pipe.has_beaten()
    (descriptor,) = pipe.descriptors
    assert pipe.environ == {VARIABLE: str(descriptor)}
    os.write(descriptor, b"..")
    assert pipe.has_beaten()
    assert not pipe.has_beaten()
    pipe.on_started()
    # Nobody has the other end any more.
    assert not pipe.has_beaten()
    pipe.close()


def test_a_running_process_is_not_stopped() -> None:
    assert not is_stopped(os.getpid())
    assert not is_stopped(1 << 30)
