"""Medians, paired ratios and their spread, the bare loop's best batch, aims, the file of a run.

Kept as a test of an oracle: `make bench` passes or fails by the aims.
"""

import json

import pytest

from benchmarks.figures.aims import Aim, outcomes
from benchmarks.figures.ratios import over_bare, ratios
from benchmarks.figures.samples import Cell, Sample, document, dump, middle, parse
from benchmarks.figures.table import outcome_table, ratio_table, table


def sample(rate: float, p50: float = 100.0, **cpu: float) -> Sample:
    return Sample(infer_per_s=rate, p50_us=p50, p99_us=2 * p50, cpu_us=cpu or {"server": 10.0})


SAMPLES = {
    Cell("mlp", "nereid", "grpc", 64): [sample(300.0), sample(180.0), sample(200.0)],
    Cell("mlp", "triton", "grpc", 64): [sample(100.0), sample(100.0), sample(200.0)],
    Cell("mlp", "nereid", "grpc", 1): [sample(50.0, p50=110.0)],
    Cell("mlp", "triton", "grpc", 1): [sample(50.0, p50=100.0)],
    Cell("mlp", "nereid-x", "grpc", 1): [sample(50.0, p50=55.0)],
    Cell("mlp", "nereid", "http", 64): [sample(50.0)],
    Cell("mlp", "bare", "-", 16): [sample(1000.0), sample(1000.0), sample(1000.0)],
    Cell("mlp", "bare", "-", 64): [sample(900.0)],
    Cell("python", "nereid", "http", 2): [sample(50.0)],
    Cell("python", "triton", "http", 2): [sample(50.0)],
}


def test_each_figure_has_its_own_median() -> None:
    found = middle([sample(1.0, a=3.0), sample(3.0, a=1.0, b=8.0), sample(2.0, b=6.0)])
    assert found.infer_per_s == 2.0
    assert found.cpu_us == {"a": 1.0, "b": 6.0}


def test_ratios_are_paired_by_round() -> None:
    found = {
        (each.ours, each.theirs, each.protocol, each.concurrency): each for each in ratios(SAMPLES)
    }
    assert set(found) == {
        ("nereid", "triton", "grpc", 64),
        ("nereid", "triton", "grpc", 1),
        ("nereid-x", "triton", "grpc", 1),
        ("nereid-x", "nereid", "grpc", 1),
        ("nereid", "triton", "http", 2),
    }
    rate = found["nereid", "triton", "grpc", 64].rate
    assert (rate.median, rate.lowest, rate.highest) == (1.8, 1.0, 3.0)
    assert str(rate) == "1.80 (1.00 to 3.00)"
    assert found["nereid-x", "nereid", "grpc", 1].p50.median == 0.5


def test_the_bare_loop_is_compared_at_the_best_of_both() -> None:
    found = {each.protocol: each for each in over_bare(SAMPLES) if each.ours == "nereid"}
    assert set(found) == {"grpc", "http"}
    assert found["grpc"].concurrency == 64
    assert found["grpc"].rate.median == 0.2


@pytest.mark.parametrize(
    ("aim", "value", "met"),
    [
        (Aim("mlp", "nereid", "triton", "grpc", 64, "rate", 1.8), 1.8, True),
        (Aim("mlp", "nereid", "triton", "grpc", 64, "rate", 1.9), 1.8, False),
        (Aim("mlp", "nereid", "triton", "grpc", 1, "p50", 1.0), 1.1, False),
        (Aim("mlp", "nereid-x", "triton", "grpc", 1, "p50", 0.6), 0.55, True),
        (Aim("mlp", "nereid", "triton", "grpc", 64, "cpu", 1.0), 1.0, True),
        (Aim("mlp", "nereid", "bare", "grpc", None, "rate", 0.2), 0.2, True),
    ],
    ids=["rate", "rate-missed", "p50-missed", "variant", "cpu", "bare"],
)
def test_aims(aim: Aim, value: float, met: bool) -> None:
    (found,) = outcomes(SAMPLES, [aim])
    assert found.value.median == pytest.approx(value)
    assert found.is_met is met
    assert ("MISSED" in outcome_table([found])) is not met


def test_tables_hold_every_cell() -> None:
    text = table(SAMPLES)
    assert len(text.splitlines()) == 1 + len(SAMPLES)
    assert "10.0 = server 10.0" in text
    assert "nereid-x / triton" in ratio_table(ratios(SAMPLES))


def test_the_file_keeps_every_sample() -> None:
    text = dump(document(SAMPLES, {"cores": 2}))
    samples, about = parse(json.loads(text))
    assert samples == SAMPLES
    assert about == {"cores": 2}
    assert text.count('"infer_per_s"') == len(SAMPLES) + sum(map(len, SAMPLES.values()))
    with pytest.raises(ValueError, match="format 0"):
        parse({"format": 0})
