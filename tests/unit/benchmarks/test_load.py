"""Figures and failures that h2load and wrk print.

Kept as a test of an oracle: a failure that is overlooked lets every benchmark pass.
"""

from collections.abc import Callable

import pytest

from benchmarks.failure import BenchError
from benchmarks.load import parse_h2load, parse_wrk

H2LOAD = """\
starting benchmark...
Application protocol: h2c
progress: 100% done

finished in {finished}, 13282.95 req/s, 1.41MB/s
requests: 4 total, 4 started, {counts}
status codes: 4 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 1.06MB (1113290) total, 29.59KB (30300) headers (space savings 96.26%), 300B (300) data
                     min         max         mean         sd        +/- sd
time for request:      421us      6.23ms      1.16ms       327us    82.19%
"""
GOOD = "4 done, 4 succeeded, 0 failed, 0 errored, 0 timeout"
LOG = "1795239987684904\t200\t100\n17\t200\t200\n18\t200\t300\n19\t200\t400\n"
WRK = (
    "Requests/sec:  12621.47\n"
    'RESULT {"requests": 300, "duration_us": 1500000, "p50_us": 1263, "p99_us": 1862, "bytes": 9, '
    '"errors": {"connect": 0, "read": 0, "write": 0, "status": %d, "timeout": 0}}\n'
)


@pytest.mark.parametrize(
    ("finished", "seconds"), [("752.85ms", 0.75285), ("2.00s", 2.0), ("850us", 0.00085)]
)
def test_h2load_summary(finished: str, seconds: float) -> None:
    load = parse_h2load(H2LOAD.format(finished=finished, counts=GOOD), LOG, 0.5)
    assert load.requests == 4
    assert load.duration_s == pytest.approx(seconds)
    assert load.infer_per_s == pytest.approx(4 / seconds)
    assert load.p50_us == 250
    assert load.p99_us == pytest.approx(397)
    assert load.data_bytes == 300
    assert load.client_cpu_s == 0.5


@pytest.mark.parametrize(
    "counts",
    [
        "4 done, 3 succeeded, 1 failed, 0 errored, 0 timeout",
        "4 done, 3 succeeded, 1 failed, 1 errored, 0 timeout",
        "4 done, 4 succeeded, 0 failed, 0 errored, 1 timeout",
        "0 done, 0 succeeded, 0 failed, 0 errored, 0 timeout",
    ],
)
def test_h2load_trouble(counts: str) -> None:
    with pytest.raises(BenchError, match="succeeded"):
        parse_h2load(H2LOAD.format(finished="1.00s", counts=counts), LOG)


@pytest.mark.parametrize("parse", [lambda text: parse_h2load(text, ""), parse_wrk])
def test_output_not_understood(parse: Callable[[str], object]) -> None:
    with pytest.raises(BenchError, match="not understood: could not connect"):
        parse("could not connect")


def test_wrk_result() -> None:
    load = parse_wrk(WRK % 0, 0.25)
    assert load.requests == 300
    assert load.infer_per_s == pytest.approx(200)
    assert (load.p50_us, load.p99_us, load.client_cpu_s) == (1263, 1862, 0.25)


def test_wrk_trouble() -> None:
    with pytest.raises(BenchError, match="'status': 2"):
        parse_wrk(WRK % 2)
    with pytest.raises(BenchError, match="0 requests"):
        parse_wrk((WRK % 0).replace('"requests": 300', '"requests": 0'))
