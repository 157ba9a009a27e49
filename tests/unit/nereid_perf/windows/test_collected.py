"""What reports say of a time."""

import numpy as np
import pytest

from nereid_perf.measurement import LoadLevel, Measurement, PhaseTiming
from nereid_perf.plan import Workload
from nereid_perf.windows.collected import Collected, measurement_of
from nereid_perf.workers.messages import Report
from nereid_perf.workers.rows import CANCELLED, FAILED, GAP, OK, ROW
from nereid_perf.workers.timing_rows import CLIENT_AND_WIRE, TIMING

S = 1_000_000_000
MS = 1_000_000
RATE, CLOSED = LoadLevel("rate", 10), LoadLevel("concurrency", 1)


def _report(
    until_s: float,
    *rows: tuple[int, ...],
    gaps: tuple[tuple[int, ...], ...] = (),
    texts: tuple[str, ...] = (),
    timings: tuple[tuple[int, ...], ...] = (),
    phases: tuple[str, ...] = (),
    cpu_s: float = 0.0,
    delayed: int = 0,
    final: bool = False,
) -> Report:
    """rows: intended, sent, first, last in ms, then workload, responses, outcome[, tokens]."""
    scaled = [(*(each * MS for each in row[:4]), *(*row[4:], 0, 0)[:5]) for row in rows]
    return Report(
        until_ns=round(until_s * S),
        cpu_s=cpu_s,
        waited_s=0.0,
        delayed=delayed,
        in_flight=1,
        rows=np.array(scaled, dtype=ROW).tobytes(),
        gaps=np.array(list(gaps), dtype=GAP).tobytes(),
        new_texts=texts,
        timings=np.array(list(timings), dtype=TIMING).tobytes(),
        new_phases=phases,
        ended=final,
        final=final,
    )


def _measured(
    collected: Collected,
    level: LoadLevel = RATE,
    span_s: tuple[int, int] = (1, 2),
    workloads: tuple[Workload, ...] = (Workload("m"),),
) -> Measurement:
    span = span_s[0] * S, span_s[1] * S
    return measurement_of(collected, level, span, workloads, is_stable=True, windows=1)


def test_requests_are_counted_by_their_end() -> None:
    collected = Collected(1)
    collected.add(
        0,
        _report(
            3,
            (900, 900, 950, 999, 0, 1, OK),
            (900, 900, 950, 1000, 0, 1, OK),
            (1990, 1990, 1995, 1999, 0, 2, OK),
            (1990, 1990, 1995, 2000, 0, 1, OK),
        ),
    )
    measurement = _measured(collected)
    assert (measurement.requests, measurement.responses) == (2, 3)
    assert measurement.duration_s == 1
    assert measurement.requests_per_s == 2


def test_tokens_are_those_of_requests_that_succeeded() -> None:
    collected = Collected(1)
    ended = (1100, 1100, 1200, 1300, 0, 1)
    collected.add(0, _report(3, (*ended, OK, 5, 2), (*ended, OK, 6, 0), (*ended, CANCELLED, 9, 9)))
    measurement = _measured(collected)
    assert (measurement.input_tokens, measurement.output_tokens) == (11, 2)
    assert measurement.tokens_per_s == 13


def test_an_open_loops_latencies_are_those_of_all_that_were_intended() -> None:
    collected = Collected(1)
    # Intended before the end, and held back until long after it.
    collected.add(
        0, _report(9, (1100, 1900, 1920, 1950, 0, 1, OK), (1500, 3000, 5000, 6500, 0, 1, OK))
    )
    latencies = _measured(collected).latencies
    assert latencies.response.total_count == 2
    assert latencies.response.get_max_value() == pytest.approx(5000 * MS, rel=1e-3)
    assert latencies.service.get_max_value() == pytest.approx(3500 * MS, rel=1e-3)
    assert latencies.first.get_max_value() == pytest.approx(3500 * MS, rel=1e-3)


def test_a_closed_loops_latencies_are_those_of_all_that_ended() -> None:
    collected = Collected(1)
    collected.add(
        0, _report(9, (900, 900, 990, 1100, 0, 1, OK), (1500, 1500, 5000, 6500, 0, 1, OK))
    )
    latencies = _measured(collected, CLOSED).latencies
    assert latencies.response.total_count == 1
    assert latencies.response.get_max_value() == pytest.approx(200 * MS, rel=1e-3)


@pytest.mark.parametrize("level", [RATE, CLOSED])
def test_a_request_that_never_ends_is_a_failure(level: LoadLevel) -> None:
    collected = Collected(1)
    collected.add(
        0, _report(20, (1500, 1500, 0, 19_000, 0, 0, FAILED), texts=("no response",), final=True)
    )
    measurement = _measured(collected, level)
    assert measurement.failures == {"no response": 1}
    assert measurement.requests == 0


def test_failures_and_cancellations_are_apart() -> None:
    collected = Collected(2)
    collected.add(0, _report(3, (1100, 1100, 0, 1200, 0, 0, FAILED), texts=("one",)))
    # The other worker met its failures in another order.
    collected.add(
        1,
        _report(
            3,
            (1100, 1100, 0, 1200, 0, 0, FAILED),
            (1100, 1100, 0, 1200, 0, 0, FAILED + 1),
            (1100, 1100, 0, 1200, 0, 0, CANCELLED),
            (1100, 1100, 1200, 1200, 0, 1, OK),
            texts=("two", "one"),
        ),
    )
    measurement = _measured(collected, CLOSED)
    assert measurement.failures == {"one": 2, "two": 1}
    assert (measurement.cancelled, measurement.requests) == (1, 1)
    assert measurement.latencies.response.total_count == 1


def test_gaps_between_responses() -> None:
    collected = Collected(1)
    gaps = ((1500 * MS, 0, 7 * MS), (2500 * MS, 0, 9 * MS))
    collected.add(0, _report(3, (1100, 1100, 1200, 1500, 0, 2, OK), gaps=gaps))
    between = _measured(collected).latencies.between
    assert between.total_count == 1
    assert between.get_max_value() == pytest.approx(7 * MS, rel=1e-3)


def test_all_has_come_up_to_the_slowest_workers_report() -> None:
    collected = Collected(2)
    collected.add(0, _report(3))
    assert collected.watermark_ns == 0
    collected.add(1, _report(2))
    assert collected.watermark_ns == 2 * S
    assert not collected.complete
    collected.add(0, _report(4, final=True))
    collected.add(1, _report(4, final=True))
    assert collected.complete
    assert collected.ended


def test_cost_is_that_of_the_time_and_of_all_workers() -> None:
    collected = Collected(2)
    row = (1100, 1100, 1200, 1200, 0, 1, OK)
    collected.add(0, _report(0, cpu_s=1.0, delayed=0))
    collected.add(0, _report(4, *[row] * 10, cpu_s=3.0, delayed=40))
    collected.add(1, _report(0, cpu_s=5.0))
    collected.add(1, _report(4, cpu_s=6.0))
    client = _measured(collected).client
    assert client.busy == pytest.approx(0.5)
    assert client.cpu_us == pytest.approx(75_000)
    assert client.delayed == 10


def test_each_model_of_a_mix_has_its_own() -> None:
    collected = Collected(1)
    collected.add(
        0,
        _report(
            3,
            (1100, 1100, 1200, 1200, 0, 1, OK),
            (1100, 1100, 1400, 1400, 1, 1, OK),
            (1100, 1100, 1400, 1400, 1, 1, FAILED),
            texts=("no",),
        ),
    )
    models = _measured(collected, workloads=(Workload("a"), Workload("b"))).models
    assert {name: each.requests for name, each in models.items()} == {"a": 1, "b": 1}
    assert models["b"].failures == {"no": 1}
    assert models["b"].latencies.response.get_max_value() == pytest.approx(300 * MS, rel=1e-3)
    assert _measured(collected).models == {}


def test_of_nothing_there_is_nothing() -> None:
    measurement = _measured(Collected(1))
    assert measurement.requests == 0
    assert measurement.latencies.response.total_count == 0


def test_phases_of_all_workers_come_together_by_name() -> None:
    collected = Collected(2)
    at = 1500 * MS
    # What ended before the time, and after it, is left out.
    first = ((999 * MS, 0, 1, 9 * MS), (at, 0, 1, 2 * MS), (at, 0, 0, 4 * MS))
    collected.add(0, _report(3, timings=first, phases=(CLIENT_AND_WIRE, "queue")))
    second = ((at, 1, 1, 1 * MS), (at, 1, 2, 3 * MS), (at, 1, 0, 6 * MS), (2000 * MS, 0, 1, 9 * MS))
    collected.add(1, _report(3, timings=second, phases=(CLIENT_AND_WIRE, "compute", "queue")))
    workloads = Workload("a"), Workload("b")
    found = _measured(collected, workloads=workloads)
    # A mean is over both requests, also of what one of them does not have.
    assert found.timings == {
        "queue": PhaseTiming(2, 2500.0, 2990.0),
        "compute": PhaseTiming(1, 500.0, 1000.0),
        CLIENT_AND_WIRE: PhaseTiming(2, 5000.0, 5980.0),
    }
    assert [*found.timings] == ["queue", "compute", CLIENT_AND_WIRE]
    assert found.models["a"].timings["queue"] == PhaseTiming(1, 2000.0, 2000.0)
    assert _measured(Collected(1), span_s=(1, 2)).timings == {}
