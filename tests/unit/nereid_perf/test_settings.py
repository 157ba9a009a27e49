"""Flags."""

from pathlib import Path

import pytest

from nereid.config.settings_reader import read_settings
from nereid_perf.endpoint import Endpoint, TlsSettings
from nereid_perf.measurement import LoadLevel
from nereid_perf.settings import LoadSettings, MeasurementSettings, TargetSettings
from nereid_perf.windows.stability import ConfidenceInterval, LastThree


def _target(*argv: str) -> TargetSettings:
    return read_settings(TargetSettings, argv, {}, "perf")


def _load(*argv: str) -> LoadSettings:
    return read_settings(LoadSettings, argv, {}, "perf")


def _measurement(*argv: str) -> MeasurementSettings:
    return read_settings(MeasurementSettings, argv, {}, "perf")


@pytest.mark.parametrize(
    ("argv", "endpoint"),
    [
        ((), Endpoint("http", "localhost:8000")),
        (("-i", "grpc"), Endpoint("grpc", "localhost:8001")),
        (("-u", "http://host:1/"), Endpoint("http", "host:1")),
        (("-u", "unix:/run/a"), Endpoint("http", "unix:/run/a")),
        (("-u", "https://host:1"), Endpoint("http", "host:1", TlsSettings())),
        (
            ("-u", "h:1", "--ssl", "--ssl-https-ca-certificates-file=ca"),
            Endpoint("http", "h:1", TlsSettings("ca")),
        ),
        (
            ("-H", "A: b:c", "-H", "D:e"),
            Endpoint("http", "localhost:8000", headers=(("A", "b:c"), ("D", "e"))),
        ),
    ],
)
def test_where_the_server_is(argv: tuple[str, ...], endpoint: Endpoint) -> None:
    assert _target(*argv).server == endpoint


def test_the_metrics_page_is_read_where_it_is_asked_for() -> None:
    assert _target().metrics_page == ""
    assert _target("--collect-metrics").metrics_page == "http://localhost:8002/metrics"
    url = "https://host/page"
    assert _target("--collect-metrics", f"--metrics-url={url}").metrics_page == url


def test_models_that_a_model_calls() -> None:
    assert _target("--bls-composing-models=a,b").bls_models == ("a", "b")
    assert _target().bls_models == ()


def test_loads_that_are_no_range(tmp_path: Path) -> None:
    path = tmp_path / "intervals"
    path.write_text("1000\n2.5\n")
    load = _load(f"--request-intervals={path}")
    assert load.level == LoadLevel("trace", 1.0)
    assert load.shape.intervals_ns == (1_000_000, 2500)
    load = _load("--periodic-concurrency-range=2:10:4", "--request-period=7")
    assert load.level == LoadLevel("concurrency", 10)
    shape = load.shape
    assert (shape.periodic_from, shape.periodic_step, shape.requests_per_step) == (2, 4, 7)
    assert _load().level is None
    assert _load().shape.requests_per_step == 0


def test_ramps_and_bursts() -> None:
    shape = _load("--ramp=10:5").shape
    assert (shape.ramp_from, shape.ramp_s) == (10, 5)
    shape = _load("--bursts=100:1:5", "--request-distribution=gamma").shape
    assert (shape.burst_rate, shape.burst_s, shape.burst_period_s) == (100, 1, 5)
    assert shape.distribution == "gamma"


def test_windows() -> None:
    windows = _measurement("-p", "500", "-s", "3", "-r", "4", "--percentile=99").windows
    assert (windows.interval_s, windows.max_trials, windows.percentile) == (0.5, 4, 99)
    assert windows.rule == LastThree(3)
    assert windows.warm_up == "auto"
    windows = _measurement(
        "--measurement-mode=count_windows", "--stability-rule=confidence",
        "--warmup-request-count=0", "--request-count=9", "--drain-timeout-secs=0.5",
    ).windows  # fmt: skip
    assert (windows.mode, windows.warm_up, windows.total_requests) == ("count", 0, 9)
    assert windows.drain_s == 0.5
    assert windows.rule == ConfidenceInterval(10)


@pytest.mark.parametrize(
    ("settings", "argv", "text"),
    [
        (TargetSettings, ("-u", "nowhere"), "expected host:port"),
        (TargetSettings, ("--streaming",), "--streaming needs -i grpc"),
        (TargetSettings, ("--ssl-grpc-private-key-file=k",), "add --ssl"),
        (TargetSettings, ("-H", "no colon"), "expected NAME: VALUE"),
        (TargetSettings, ("--collect-metrics", "--metrics-url=ftp://h"), "--metrics-url"),
        (LoadSettings, ("--ramp=1",), "expected RATE:SECONDS"),
        (LoadSettings, ("--ramp=1:0",), "more than 0 seconds"),
        (LoadSettings, ("--bursts=1:5:5",), "SECONDS less than PERIOD"),
        (LoadSettings, ("--bursts=1:x:5",), "expected RATE:SECONDS:PERIOD"),
        (LoadSettings, ("--ramp=1:1", "--bursts=1:1:5"), "give one of them"),
        (LoadSettings, ("--periodic-concurrency-range=5:1:1",), "FIRST from 1"),
        (LoadSettings, ("--request-intervals=/nowhere",), "No such file"),
        (LoadSettings, ("--request-intervals=/dev/null",), "microseconds, one a line"),
        (LoadSettings, ("--request-intervals=/dev/zero",), "microseconds, one a line"),
        (LoadSettings, ("--cancel-percent=101",), "0 to 100"),
        (LoadSettings, ("--gamma-variation=x",), "expected a number"),
        (MeasurementSettings, ("-p", "1"), "of at least 10"),
        (MeasurementSettings, ("--percentile=0",), "expected a number"),
    ],
)
def test_flags_that_cannot_be(
    settings: type[object],
    argv: tuple[str, ...],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as refused:
        read_settings(settings, argv, {}, "perf")
    assert refused.value.code == 2
    assert text in capsys.readouterr().err
