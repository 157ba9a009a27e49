"""Settings of traffic: which counts, for how long gateways may not know it, how it is written."""

import pytest

from nereid.core.traffic.rollout_plan import start_rollout
from nereid.core.traffic.weights import make_traffic
from nereid_scheduler.core.models.traffic_table import (
    TrafficSetting,
    TrafficTable,
    read_setting,
)

TRAFFIC = make_traffic({1: 9, 2: 1}, "principal")


def test_a_setting_is_written_and_read() -> None:
    rollout = start_rollout(2, (1, 100), 1.0, "errors<1%", TRAFFIC)
    for setting in (
        TrafficSetting(TRAFFIC, 5),
        TrafficSetting(None, 6),
        TrafficSetting(TRAFFIC, 7, rollout),
    ):
        assert read_setting(setting.document()) == setting


@pytest.mark.parametrize("set_ns", [None, -1, 1.5, True])
def test_a_setting_without_a_time_is_refused(set_ns: object) -> None:
    with pytest.raises(ValueError, match="the time of the setting"):
        read_setting({"traffic": None, "set_ns": set_ns})


def test_what_was_before_counts_for_a_short_time() -> None:
    now_s = 10.0
    table = TrafficTable(lambda: now_s)
    assert not table
    assert table.before("m") is None
    table.remember_before("m", TRAFFIC)
    table.remember_before("n", None)
    assert (table.before("m"), table.before("n")) == ((TRAFFIC,), (None,))
    now_s = 15.0
    assert (table.before("m"), table.before("m")) == (None, None)


def test_a_later_setting_counts_whatever_the_clock_says() -> None:
    table = TrafficTable(lambda: 0.0)
    assert table.apply("m", TrafficSetting(TRAFFIC, 100))
    later = table.next_setting("m", None, 50)
    assert later.set_ns == 101
    assert table.apply("m", later)
    assert not table.apply("m", TrafficSetting(TRAFFIC, 100))
    assert table.names() == {"m"}
