"""Whole measurements by worker processes, of a mock server in a process of its own."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from nereid_perf.endpoint import Endpoint, Protocol
from nereid_perf.inputs.plan import InputPlan, ModelPlan
from nereid_perf.inputs.resolution import resolve_plan
from nereid_perf.inputs.source import make_source
from nereid_perf.load.shape import LoadShape
from nereid_perf.measurement import LoadLevel
from nereid_perf.plan import Plan, Workload
from nereid_perf.server import Server
from nereid_perf.session import Progress, Session, SessionError, WindowSettings
from nereid_perf.windows.stability import LastThree

pytestmark = pytest.mark.slow

_ANY = LastThree(1e9)
_SHORT = WindowSettings(interval_s=0.1, rule=_ANY)


@contextmanager
def _mock(*flags: str) -> Iterator[dict[str, str]]:
    """Its addresses by protocol."""
    argv = [sys.executable, "-m", "nereid_perf.mock", "--http-port=0", "--grpc-port=0", *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = (process.stdout.readline().split() for _ in range(2))
        try:
            yield {first[0]: first[1], second[0]: second[1]}
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.fixture(scope="module")
def mock() -> Iterator[dict[str, str]]:
    """One that responds at once."""
    with _mock() as addresses:
        yield addresses


def _plan(addresses: dict[str, str], protocol: Protocol = "http", **options: Any) -> Plan:
    endpoint = Endpoint(protocol, addresses[protocol])
    inputs = resolve_plan(InputPlan(protocol, (ModelPlan("any"),)), Server(endpoint))
    return Plan(
        endpoint=endpoint,
        workloads=(Workload("any"),),
        make_source=partial(make_source, inputs),
        connect_timeout_s=20,
        **options,
    )


_CLOSED, _OPEN = LoadLevel("concurrency", 4), LoadLevel("rate", 100)


@pytest.mark.parametrize(
    ("protocol", "options", "level"),
    [
        ("http", {}, _CLOSED),
        ("grpc", {}, _OPEN),
        pytest.param("grpc", {"streaming": True, "workers": 2}, _CLOSED, marks=pytest.mark.nightly),
        ("grpc", {"streaming": True, "workers": 2}, _OPEN),
    ],
)
def test_a_session_measures_levels(
    protocol: Protocol, options: dict[str, Any], level: LoadLevel
) -> None:
    seen: list[Progress] = []
    with _mock("--delay-ms=2") as addresses:
        plan = _plan(addresses, protocol, **options)
        server = Server(plan.endpoint)
        with Session(plan, _SHORT, server=server, on_progress=seen.append) as session:
            for value in (level.value, 2 * level.value):
                measurement = session.measure(replace(level, value=value))
                assert measurement.level.value == value
                assert measurement.requests == measurement.responses > 10
                assert measurement.failures == {}
                assert (measurement.windows, measurement.is_stable) == (3, True)
                assert measurement.duration_s == pytest.approx(0.3, abs=1e-6)
                assert measurement.latencies.response.get_min_value() >= 2_000_000 * 0.999
                (split,) = measurement.server
                assert split.model == "any"
                assert split.requests > 0
                assert split.compute_infer_us == pytest.approx(2000)
                assert measurement.client.cpu_us > 0
    assert {each.is_warm for each in seen} >= {False}
    assert any(each.requests_per_s > 0 and each.p99_ns >= each.p50_ns > 0 for each in seen)


def test_one_window_of_a_given_time(mock: dict[str, str]) -> None:
    with Session(_plan(mock), _SHORT) as session:
        measurement = session.measure_for(LoadLevel("rate", 200), 0.5, warm_up_s=0.1)
    assert measurement.duration_s == 0.5
    assert (measurement.windows, measurement.is_stable) == (1, True)
    assert measurement.latencies.response.total_count == pytest.approx(100, abs=1)
    assert measurement.server == ()


@pytest.mark.parametrize("warm_up", [0, 10])
def test_so_many_requests(mock: dict[str, str], warm_up: int, tmp_path: Path) -> None:
    windows = WindowSettings(total_requests=50, warm_up=warm_up)
    path = tmp_path / "records.csv"
    with Session(_plan(mock, workers=2), windows, records=path) as session:
        measurement = session.measure(LoadLevel("concurrency", 2))
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == 50 + warm_up
    assert {each["outcome"] for each in records} == {"ok"}
    assert measurement.requests == 50


@pytest.mark.parametrize("level", [LoadLevel("concurrency", 1), LoadLevel("rate", 500)])
@pytest.mark.parametrize("requests", [1, 5])
def test_so_many_requests_by_more_workers_than_have_any(
    mock: dict[str, str], level: LoadLevel, requests: int
) -> None:
    windows = WindowSettings(total_requests=requests, warm_up=0)
    with Session(_plan(mock, workers=2), windows) as session:
        assert session.measure(level).requests == requests


def test_windows_of_so_many_requests(mock: dict[str, str]) -> None:
    windows = WindowSettings(mode="count", request_count=40, rule=_ANY, warm_up=5)
    with Session(_plan(mock), windows) as session:
        measurement = session.measure(LoadLevel("concurrency", 1))
    assert measurement.windows == 3
    assert measurement.requests >= 120


def test_too_many_windows_that_differ_are_not_stable() -> None:
    windows = WindowSettings(interval_s=0.1, rule=LastThree(0.0), max_trials=4)
    with (
        _mock("--jitter-ms=2", "--delay-ms=2") as addresses,
        Session(_plan(addresses), windows) as session,
    ):
        measurement = session.measure(LoadLevel("concurrency", 2))
    assert (measurement.windows, measurement.is_stable) == (4, False)


def test_intervals_are_a_load_of_their_own(mock: dict[str, str]) -> None:
    plan = _plan(mock, shape=LoadShape(intervals_ns=(1_000_000, 9_000_000)))
    with Session(plan, _SHORT) as session:
        measurement = session.measure(LoadLevel("trace", 1.0))
    assert measurement.latencies.response.total_count == pytest.approx(60, abs=2)


def test_a_stall_shows_in_the_response_time_as_by_hand(tmp_path: Path) -> None:
    """200 requests a second for 2.5 s; the server stands still for half a second."""
    windows = WindowSettings(total_requests=500, warm_up=0)
    path = tmp_path / "records.csv"
    with _mock("--stall-after=1", "--stall-for=0.5") as addresses:
        plan = _plan(addresses, max_in_flight=1)
        with Session(plan, windows, records=path) as session:
            measurement = session.measure(LoadLevel("rate", 200))
    # Requests of that time wait until its end: 0.5 s, 0.495 s, ... The sixth of 500 is p99.
    # The stall begins with an arrival: the first of these requests may have got through.
    p99_ns = measurement.latencies.response.get_value_at_percentile(99)
    assert p99_ns >= (0.475e9 - 0.005e9) * 0.999
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    taken = np.sort([int(each["last_ns"]) - int(each["intended_ns"]) for each in records])
    assert len(taken) == 500
    assert p99_ns == pytest.approx(taken[494], rel=2e-3)
    # Only one was in the server meanwhile.
    service = measurement.latencies.service
    assert service.get_value_at_percentile(99) < 0.25e9
    assert service.get_max_value() >= 0.45e9


@pytest.mark.parametrize(
    ("protocol", "text"), [("http", "HTTP 500: the mock"), ("grpc", "INTERNAL: the mock")]
)
def test_if_all_requests_fail_there_is_nothing_to_say(protocol: Protocol, text: str) -> None:
    with (
        _mock("--fail-percent=100") as addresses,
        Session(_plan(addresses, protocol), _SHORT) as session,
        pytest.raises(SessionError, match=f"all requests failed.*{text}"),
    ):
        session.measure(LoadLevel("concurrency", 2))


def test_some_failures_are_counted_apart() -> None:
    windows = WindowSettings(total_requests=400, warm_up=0)
    with (
        _mock("--fail-percent=25", "--seed=1") as addresses,
        Session(_plan(addresses), windows) as session,
    ):
        measurement = session.measure(LoadLevel("concurrency", 4))
    (failed,) = measurement.failures.values()
    assert 50 < failed < 150
    assert measurement.requests + failed == 400


def test_what_never_comes_is_a_failure() -> None:
    windows = WindowSettings(interval_s=0.2, rule=_ANY, max_trials=1, warm_up=0, drain_s=0.1)
    with (
        _mock("--stall-after=0", "--stall-for=1000") as addresses,
        Session(_plan(addresses), windows) as session,
        pytest.raises(SessionError, match="no response before the end"),
    ):
        session.measure(LoadLevel("concurrency", 2))


@pytest.mark.parametrize("mode", ["time", "count"])
def test_a_server_that_ceases_to_respond_ends_a_closed_loop(mode: Literal["time", "count"]) -> None:
    windows = WindowSettings(
        mode=mode,
        interval_s=0.2,
        request_count=1 << 30,
        rule=LastThree(1e-9),
        max_trials=1000,
        drain_s=0.3,
    )
    with (
        _mock("--stall-after=0.5", "--stall-for=1000") as addresses,
        Session(_plan(addresses), windows) as session,
        pytest.raises(SessionError, match=r"no request has ended for .* 2 are in flight"),
    ):
        session.measure(LoadLevel("concurrency", 2))


def test_without_a_server_it_says_so() -> None:
    with _mock() as addresses:
        plan = _plan(addresses)
    with (
        Session(plan, _SHORT) as session,
        pytest.raises(SessionError, match="cannot connect to"),
    ):
        session.measure(LoadLevel("concurrency", 2))


def test_a_worker_that_is_killed_ends_the_run_with_its_signal(mock: dict[str, str]) -> None:
    def kill(_: Progress) -> None:
        os.kill(session.worker_pids[1], signal.SIGKILL)

    windows = WindowSettings(interval_s=60)
    with (
        Session(_plan(mock, workers=2), windows, on_progress=kill) as session,
        pytest.raises(SessionError, match="worker 1 was ended by SIGKILL"),
    ):
        session.measure(LoadLevel("concurrency", 2))


def test_no_worker_outlives_its_session(mock: dict[str, str]) -> None:
    with Session(_plan(mock, workers=2), _SHORT) as session:
        pids = session.worker_pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_overload_is_a_measurement() -> None:
    settings = replace(_SHORT, drain_s=0.1)
    with _mock("--delay-ms=500", "--concurrency=1") as addresses:
        plan = _plan(addresses, max_in_flight=4)
        with Session(plan, settings) as session:
            measurement = session.measure_for(LoadLevel("rate", 500), 0.3)
    assert measurement.requests == 0
    assert set(measurement.failures) == {"no response before the end"}
    assert sum(measurement.failures.values()) == pytest.approx(150, abs=1)


def test_a_source_that_raises_ends_the_run_with_what_it_said(mock: dict[str, str]) -> None:
    unresolved = InputPlan("http", (ModelPlan("any"),))
    plan = replace(_plan(mock), make_source=partial(make_source, unresolved))
    with (
        Session(plan, _SHORT) as session,
        pytest.raises(SessionError, match="AssertionError: the plan is resolved"),
    ):
        session.measure(LoadLevel("concurrency", 1))


def test_a_level_without_successes_leaves_no_load_for_the_next_one() -> None:
    with (
        _mock("--fail-percent=100") as addresses,
        Session(_plan(addresses), replace(_SHORT, total_requests=5, warm_up=0)) as session,
    ):
        server = Server(Endpoint("http", addresses["http"]))
        for _ in range(2):
            with pytest.raises(SessionError, match="all requests failed"):
                session.measure_for(LoadLevel("concurrency", 1), 0.5)
            with pytest.raises(SessionError, match="all requests failed"):
                session.measure(LoadLevel("concurrency", 1))
        before = (server.statistics("any") or [{}])[0]
        with pytest.raises(SessionError, match="all requests failed"):
            session.measure(LoadLevel("concurrency", 1))
        after = (server.statistics("any") or [{}])[0]
    assert after["execution_count"] - before["execution_count"] == 5


def test_a_rate_at_which_all_fail_is_a_measurement() -> None:
    with (
        _mock("--fail-percent=100") as addresses,
        Session(_plan(addresses), replace(_SHORT, max_trials=5)) as session,
    ):
        level = LoadLevel("rate", 200)
        for measurement in (session.measure(level), session.measure_for(level, 0.2)):
            assert measurement.requests == 0
            (text,) = measurement.failures
            assert "the mock server was told to fail" in text
        assert session.measure(level).is_stable is False


@pytest.mark.parametrize("warm_up", [0, 2])
def test_so_many_requests_of_which_none_ever_ends_are_given_up(warm_up: int) -> None:
    windows = WindowSettings(total_requests=10, warm_up=warm_up, drain_s=0.3)
    with (
        _mock("--stall-after=0", "--stall-for=1000") as addresses,
        Session(_plan(addresses), windows) as session,
        pytest.raises(SessionError, match="no response before the end"),
    ):
        session.measure(LoadLevel("concurrency", 2))


def test_the_cpu_time_of_a_short_run_is_counted_from_its_begin(mock: dict[str, str]) -> None:
    windows = WindowSettings(total_requests=20, warm_up=0)
    with Session(_plan(mock), windows) as session:
        measurement = session.measure(LoadLevel("concurrency", 1))
    assert measurement.client.cpu_us > 5


def test_a_window_of_requests_that_never_come_ends() -> None:
    windows = WindowSettings(
        mode="count", interval_s=0.02, rule=_ANY, max_trials=1, warm_up=0, drain_s=0.5
    )
    with (
        _mock("--stall-after=0", "--stall-for=1000") as addresses,
        Session(_plan(addresses), windows) as session,
        pytest.raises(SessionError, match="no response before the end"),
    ):
        session.measure(LoadLevel("concurrency", 2))
