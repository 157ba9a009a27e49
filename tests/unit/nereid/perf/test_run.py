"""Exit codes, and what is printed."""

import numpy as np
import pytest

from nereid.perf.command import main
from nereid.perf.exit_codes import ExitCode
from nereid.perf.histograms import histogram_of
from nereid.perf.measurement import (
    ClientCost,
    Latencies,
    LoadLevel,
    Measurement,
    ServerSplit,
)
from nereid.perf.run import exit_code
from nereid.perf.summary import level_text, percentile_ns, summary_lines


def _measurement(*, is_stable: bool = True, is_bottleneck: bool = False) -> Measurement:
    times = histogram_of(np.array([1_000_000, 2_000_000]))
    return Measurement(
        level=LoadLevel("rate", 2),
        duration_s=1.0,
        requests=2,
        responses=6,
        failures={f"failure {number}": number for number in range(1, 8)},
        cancelled=3,
        is_stable=is_stable,
        windows=10,
        latencies=Latencies(times, times, times, histogram_of(np.array([], dtype=np.int64))),
        client=ClientCost(cpu_us=20.0, busy=0.5, delayed=9, is_bottleneck=is_bottleneck),
        server=(ServerSplit("m", "1", 2, 1, 10.0, None, 20.0, None, cache_hits=1),),
        gauges={'nv_gpu_utilization{gpu="0"}': (0.5, 1.0), "other": (1, 1)},
    )


@pytest.mark.parametrize(
    ("measurements", "code"),
    [
        ([], ExitCode.OK),
        ([_measurement()], ExitCode.OK),
        ([_measurement(is_stable=False), _measurement()], ExitCode.UNSTABLE),
        (
            [_measurement(is_stable=False), _measurement(is_bottleneck=True)],
            ExitCode.CLIENT_WAS_BOTTLENECK,
        ),
    ],
)
def test_the_worst_level_counts(measurements: list[Measurement], code: ExitCode) -> None:
    assert exit_code(measurements) == code


def test_a_summary_says_all_that_matters() -> None:
    text = "\n".join(summary_lines(_measurement(is_stable=False, is_bottleneck=True)))
    for part in (
        "Throughput: 2.00 infer/sec",
        "p99 2001, mean 1500 usec",
        "Of it service time",
        "Responses: 6",
        "Between responses: p50 0",
        "Cancelled: 3",
        "Failed: 7 with: failure 7",
        "Failed with others: 3",
        "Own CPU: 20.0 us per request, the busiest worker 50% of one",
        "Sent late: 9",
        "The client was the bottleneck",
        "Not stable in 10 windows",
        "m 1: 2 requests in 1 executions, 1 from the cache, queue 10 + compute infer 20 usec",
        'nv_gpu_utilization{gpu="0"}: 0.5, at most 1',
    ):
        assert part in text
    assert "other" not in text.replace("others", "")


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (LoadLevel("concurrency", 4.0), "Request concurrency: 4"),
        (LoadLevel("rate", 2.5), "Request rate: 2.5 per second"),
        (LoadLevel("trace", 1.0), "Recorded times, at speed 1"),
    ],
)
def test_levels(level: LoadLevel, text: str) -> None:
    assert level_text(level) == text


def test_of_nothing_a_percentile_is_zero() -> None:
    assert percentile_ns(histogram_of(np.array([], dtype=np.int64)), 99) == 0


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert "nereid perf mock" in capsys.readouterr().out
    assert main(["nothing"]) == 2
    assert "unknown command 'nothing'" in capsys.readouterr().err
    for argv in (["mock", "--help"], ["run", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0
    with pytest.raises(SystemExit) as refused:
        main(["-m", "x", "--workers=0"])
    assert refused.value.code == 2
