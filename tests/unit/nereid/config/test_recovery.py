"""The times of the mesh's failures, and what must hold between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.config.recovery import RecoverySettings, RecoveryTimes
from nereid.config.settings_reader import read_settings
from nereid.rpc import ChannelOptions
from nereid_scheduler.placement.loads.readiness import READY_TIMEOUT_S


def settings_of(*argv: str) -> RecoverySettings:
    return read_settings(RecoverySettings, argv, {}, "test")


def test_a_service_that_hangs_is_noticed_within_seconds_by_default() -> None:
    options = settings_of().with_keepalive(ChannelOptions(connect_timeout_s=7))
    assert (options.keepalive_interval_s, options.keepalive_timeout_s) == (2, 5)
    assert options.connect_timeout_s == 7


def test_one_of_several_schedulers_is_given_up_sooner() -> None:
    options = settings_of().with_keepalive(ChannelOptions(), replaceable=True)
    assert (options.keepalive_interval_s, options.keepalive_timeout_s) == (0.8, 2)


def test_a_silence_that_a_healthy_service_may_keep_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        settings_of("--mesh-silence-secs=0")
    assert "expected at least 0.5 seconds" in capsys.readouterr().err


def test_a_flag_of_its_own_counts_before_the_time_of_a_restart() -> None:
    settings = settings_of("--mesh-restart-secs=90")
    assert settings.or_restart(None) == 90
    assert settings.or_restart(0.0) == 0


@given(st.floats(0.5, 3600), st.floats(0, 3600))
def test_times_keep_their_order(silence_s: float, restart_s: float) -> None:
    times = RecoveryTimes(silence_s, restart_s)
    assert times.ping_after_s + times.ping_reply_s == pytest.approx(silence_s)
    # One of several schedulers is given up, and replaced, before others would be.
    given_up_s = times.peer_ping_after_s + times.peer_ping_reply_s
    assert given_up_s < silence_s <= times.watchdog_s
    # It does not take for lost what has just come back, nor take back what others have by then.
    assert times.peer_ping_after_s < times.peer_ping_reply_s
    # Reports of executors come before a takeover goes on without them.
    assert times.executor_report_s < times.takeover_reports_s < times.peer_ping_reply_s
    # An instance that dials a lost scheduler is free before others stop waiting for it.
    assert times.connect_s < times.instance_stop_s
    # Executors are back before a scheduler that starts goes on without them.
    assert times.executor_report_s + times.join_pause_s < times.start_wait_s
    # A scheduler that stood still has waited for its peers before its models count as lost.
    assert times.start_wait_s + times.settle_s < times.claim_s
    # A gateway has seen that its link is down, and may have another one.
    assert silence_s <= times.orphan_s
    # A model may take its time to say whether it is ready.
    assert times.forwarded_call_s > READY_TIMEOUT_S
    assert times.unserved_s <= restart_s <= times.move_s <= times.abandoned_s
