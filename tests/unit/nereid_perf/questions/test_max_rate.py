from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nereid_perf.measurement import ClientCost, LoadLevel, Measurement
from nereid_perf.questions.max_rate import (
    MaxRate,
    RateOutcome,
    SearchRules,
    find_max_rate,
    keeps_up,
)
from nereid_perf.questions.question import resolve
from nereid_perf.questions.slo import parse_slo
from tests.support.measurements import measured, rate

_SLO = parse_slo("p99=20ms")
_SLOW_CLIENT = ClientCost(cpu_us=900, busy=1.0, delayed=10, is_bottleneck=True)


def _server(capacity: float) -> Callable[[LoadLevel], Measurement]:
    """1 ms up to its capacity, then far too long."""
    return lambda level: measured(
        level, [1000 if level.value <= capacity else 50_000] * 100, duration_s=100 / level.value
    )


def _search(measure: Callable[[LoadLevel], Measurement], **rules: float) -> MaxRate:
    return resolve(find_max_rate(_SLO, SearchRules(**rules)), measure)  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [0.3, 7, 99, 101, 1234, 80_000])
def test_the_rate_is_found_to_the_precision(capacity: float) -> None:
    found = _search(_server(capacity))
    assert found.outcome is RateOutcome.FOUND
    assert capacity / 1.02 <= found.rate <= capacity
    assert found.missed_at is not None
    assert capacity < found.missed_at <= found.rate * 1.02
    assert found.goodput == pytest.approx(found.rate)
    assert found.confirmed_by == 2
    assert len(found.measurements) < 40


def test_no_rate_keeps_the_slo() -> None:
    found = _search(_server(0.01))
    assert (found.outcome, found.rate, found.goodput) == (RateOutcome.NONE, 0, 0)


def test_the_highest_rate_allowed_keeps_it() -> None:
    found = _search(_server(1e9), start=500, most=700)
    assert (found.outcome, found.rate, found.missed_at) == (RateOutcome.CEILING, 700, None)


def test_a_client_that_cannot_send_more_ends_the_search() -> None:
    def measure(level: LoadLevel) -> Measurement:
        if level.value <= 300:
            return _server(1e9)(level)
        return measured(level, [50_000], service_us=[1000], client=_SLOW_CLIENT)

    found = _search(measure)
    assert (found.outcome, found.rate) == (RateOutcome.CLIENT, 200)


def test_a_server_that_takes_too_long_is_not_excused_by_a_slow_client() -> None:
    def measure(level: LoadLevel) -> Measurement:
        return replace(_server(250)(level), client=_SLOW_CLIENT)

    assert _search(measure).outcome is RateOutcome.FOUND


def test_a_client_that_was_disturbed_once_ends_nothing() -> None:
    asked: list[float] = []

    def measure(level: LoadLevel) -> Measurement:
        asked.append(level.value)
        if level.value > 250 and asked.count(level.value) == 1:
            return measured(level, [50_000], service_us=[1000], client=_SLOW_CLIENT)
        return _server(250)(level)

    found = _search(measure)
    assert found.outcome is RateOutcome.FOUND
    assert 250 / 1.02 <= found.rate <= 250


def test_a_client_that_is_busy_but_sends_all_in_time_ends_nothing() -> None:
    def measure(level: LoadLevel) -> Measurement:
        latency = 1000 if level.value <= 150 else 50_000
        client = _SLOW_CLIENT if level.value <= 150 else None
        return measured(level, [latency] * 100, duration_s=100 / level.value, client=client)

    assert _search(measure).outcome is RateOutcome.FOUND


def test_a_server_that_ends_fewer_than_are_sent_does_not_keep_up() -> None:
    # All that ended were fast; half did not end.
    assert not keeps_up(measured(rate(1000), [1000] * 500))
    assert keeps_up(measured(rate(1000), [1000] * 820))
    assert not keeps_up(measured(rate(100_000), [1000] * 960, duration_s=0.01 * 1.2))


def test_the_search_is_bounded() -> None:
    found = _search(_server(1234), most_measurements=5)
    assert found.outcome is RateOutcome.UNSETTLED
    assert len(found.measurements) == 5
    assert found.rate <= 1234


def test_a_precision_beyond_the_digits_of_a_rate_ends() -> None:
    found = _search(_server(1234.5), precision=1e-6)
    assert (found.outcome, found.rate, found.missed_at) == (RateOutcome.FOUND, 1234, 1235)


def test_a_lucky_measurement_on_the_way_up_is_found_out() -> None:
    asked: list[float] = []

    def measure(level: LoadLevel) -> Measurement:
        asked.append(level.value)
        is_lucky = level.value == 400 and asked.count(400) == 1
        return _server(1e9 if is_lucky else 250)(level)

    found = _search(measure)
    assert found.outcome is RateOutcome.FOUND
    assert 250 / 1.02 <= found.rate <= 250


def test_all_luck_at_the_start_is_found_out() -> None:
    asked: list[float] = []

    def measure(level: LoadLevel) -> Measurement:
        asked.append(level.value)
        return _server(1e9 if len(asked) == 1 else 0.01)(level)

    assert _search(measure).outcome is RateOutcome.NONE


def test_a_noisy_server_s_rate_is_near_the_truth() -> None:
    """p99 rises as 1 / (1 - load), each measurement is off by 5 %: 20 ms are at 950 of 1000/s."""
    rates = []
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def measure(level: LoadLevel, rng: np.random.Generator = rng) -> Measurement:
            latency = 1000 / max(1 - level.value / 1000, 1e-3) * rng.lognormal(0, 0.05)
            return measured(level, [latency] * 100, duration_s=100 / level.value)

        rates.append(_search(measure).rate)
    assert min(rates) >= 930
    assert max(rates) <= 965
