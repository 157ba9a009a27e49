"""Medians, paired ratios, and outcomes against the aims."""

import json

from benchmarks.measure import Cell, Sample
from benchmarks.report import document, middle, ratio_table, ratios, table


def sample(rate: float, p50: float = 100.0, **cpu: float) -> Sample:
    return Sample(infer_per_s=rate, p50_us=p50, p99_us=2 * p50, cpu_us=cpu or {"server": 10.0})


SAMPLES = {
    Cell("nereid", "grpc", 64): [sample(300.0), sample(180.0), sample(200.0)],
    Cell("triton", "grpc", 64): [sample(100.0), sample(100.0), sample(200.0)],
    Cell("nereid", "grpc", 1): [sample(50.0, p50=110.0)],
    Cell("triton", "grpc", 1): [sample(50.0, p50=100.0)],
    Cell("nereid", "http", 2): [sample(50.0)],
    Cell("triton", "http", 2): [sample(50.0)],
    Cell("nereid", "http", 64): [sample(50.0)],
    Cell("bare", "-", 64): [sample(900.0)],
}


def test_each_figure_has_its_own_median() -> None:
    found = middle([sample(1.0, a=3.0), sample(3.0, a=1.0, b=8.0), sample(2.0, b=6.0)])
    assert found.infer_per_s == 2.0
    assert found.cpu_us == {"a": 1.0, "b": 6.0}


def test_ratios_are_paired_by_round() -> None:
    found = {(each.protocol, each.concurrency): each for each in ratios(SAMPLES)}
    assert set(found) == {("grpc", 64), ("grpc", 1), ("http", 2)}
    ratio = found["grpc", 64]
    rates = (ratio.infer_per_s, ratio.lowest_infer_per_s, ratio.highest_infer_per_s)
    assert rates == (1.8, 1.0, 3.0)
    assert ratio.outcome == "rate >= 1.50 met"
    assert found["grpc", 1].outcome == "p50 <= 1.00 MISSED"
    assert found["http", 2].outcome == ""


def test_a_peer_without_figures_gives_no_ratio() -> None:
    alone = {Cell("nereid", "grpc", 1): [sample(5.0)], Cell("bare", "-", 1): [sample(9.0)]}
    assert ratios(alone) == []


def test_tables_hold_every_cell() -> None:
    text = table(SAMPLES)
    assert len(text.splitlines()) == 1 + len(SAMPLES)
    assert "10.0 = server 10.0" in text
    assert "MISSED" in ratio_table(ratios(SAMPLES))


def test_document_is_json() -> None:
    found = json.loads(json.dumps(document(SAMPLES, {"cores": 2})))
    assert found["about"] == {"cores": 2}
    assert len(found["cells"]) == len(SAMPLES)
    assert found["cells"][0]["peer"] == "nereid"
    assert found["ratios"][0]["outcome"] == "rate >= 1.50 met"
