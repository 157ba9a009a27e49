"""The flags of keepalive between services."""

from __future__ import annotations

import pytest

from nereid.config.mesh_keepalive import MeshKeepaliveSettings
from nereid.config.settings_reader import read_settings
from nereid.rpc import ChannelOptions


def options_of(*argv: str) -> ChannelOptions:
    settings = read_settings(MeshKeepaliveSettings, argv, {}, "test")
    return settings.with_keepalive(ChannelOptions(connect_timeout_s=7))


def test_a_service_that_hangs_is_noticed_within_seconds_by_default() -> None:
    options = options_of()
    assert (options.keepalive_interval_s, options.keepalive_timeout_s) == (2, 5)
    assert options.connect_timeout_s == 7


def test_one_of_several_schedulers_is_given_up_sooner() -> None:
    settings = read_settings(MeshKeepaliveSettings, [], {}, "test")
    options = settings.with_keepalive(ChannelOptions(), replaceable=True)
    assert (options.keepalive_interval_s, options.keepalive_timeout_s) == (1, 2.5)
    settings = read_settings(MeshKeepaliveSettings, ["--mesh-keepalive-secs=0"], {}, "test")
    assert settings.keepalive(replaceable=True)[0] is None


def test_no_interval_means_no_pings() -> None:
    assert options_of("--mesh-keepalive-secs=0").keepalive_interval_s is None


def test_a_timeout_in_which_nobody_could_reply_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        options_of("--mesh-keepalive-timeout-secs=0")
    assert "expected at least 0.1 seconds" in capsys.readouterr().err
