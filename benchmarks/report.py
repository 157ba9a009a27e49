"""Figures to text and JSON: medians over the rounds, ratios paired round by round.

Pure: takes samples, returns text and plain data. Must not know how they came about.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.measure import Cell, Sample

Samples = dict[Cell, list[Sample]]

# Aims against Triton's Python backend: (protocol, concurrency) -> lowest infer/s ratio
RATE_AIMS = {("grpc", 64): 1.5, ("http", 64): 1.2, ("grpc", 16): 1.2, ("http", 16): 1.2}
P50_AIM = 1.0  # at concurrency 1, at most


@dataclass(frozen=True)
class Ratio:
    """Nereid over Triton in one protocol and concurrency: medians of the rounds' own ratios."""

    protocol: str
    concurrency: int
    infer_per_s: float
    lowest_infer_per_s: float
    highest_infer_per_s: float
    p50: float
    p99: float
    cpu: float

    @property
    def outcome(self) -> str:
        if self.concurrency == 1:
            met = self.p50 <= P50_AIM
            return f"p50 <= {P50_AIM:.2f} {'met' if met else 'MISSED'}"
        aim = RATE_AIMS.get((self.protocol, self.concurrency))
        if aim is None:
            return ""
        return f"rate >= {aim:.2f} {'met' if self.infer_per_s >= aim else 'MISSED'}"


def middle(samples: Sequence[Sample]) -> Sample:
    """The median of each figure by itself."""
    names = sorted({name for sample in samples for name in sample.cpu_us})
    return Sample(
        infer_per_s=median(each.infer_per_s for each in samples),
        p50_us=median(each.p50_us for each in samples),
        p99_us=median(each.p99_us for each in samples),
        cpu_us={name: median(each.cpu_us.get(name, 0.0) for each in samples) for name in names},
        client_cpu_us=median(each.client_cpu_us for each in samples),
        batch_size=median(each.batch_size for each in samples),
        requests=sum(each.requests for each in samples),
    )


def ratios(samples: Samples, ours: str = "nereid", theirs: str = "triton") -> list[Ratio]:
    found = []
    for cell, own in samples.items():
        other = samples.get(Cell(theirs, cell.protocol, cell.concurrency))
        if cell.peer != ours or not other:
            continue
        pairs = list(zip(own, other, strict=False))  # an interrupted run may lack a last one
        rates = _paired(pairs, lambda each: each.infer_per_s)
        found.append(
            Ratio(
                protocol=cell.protocol,
                concurrency=cell.concurrency,
                infer_per_s=median(rates),
                lowest_infer_per_s=min(rates),
                highest_infer_per_s=max(rates),
                p50=median(_paired(pairs, lambda each: each.p50_us)),
                p99=median(_paired(pairs, lambda each: each.p99_us)),
                cpu=median(_paired(pairs, lambda each: sum(each.cpu_us.values()))),
            )
        )
    return found


def _paired(
    pairs: Sequence[tuple[Sample, Sample]], figure: Callable[[Sample], float]
) -> list[float]:
    return [figure(own) / figure(other) for own, other in pairs if figure(other)] or [0.0]


def table(samples: Samples) -> str:
    columns = ("infer/s", "lowest", "highest", "p50 us", "p99 us")
    head = "".join(f"{column:>9}" for column in columns)
    lines = [f"{'':22}{head}{'batch':>7}{'client':>8}  CPU us per request"]
    for cell in sorted(samples, key=lambda each: (each.protocol, each.concurrency, each.peer)):
        here = samples[cell]
        mid = middle(here)
        rates = [each.infer_per_s for each in here]
        cpu = "  ".join(f"{name} {cpu_us:.1f}" for name, cpu_us in mid.cpu_us.items())
        total = sum(mid.cpu_us.values())
        lines.append(
            f"{cell.protocol:6}{cell.concurrency:>6}  {cell.peer:8}{mid.infer_per_s:9,.0f}"
            f"{min(rates):9,.0f}{max(rates):9,.0f}{mid.p50_us:9,.0f}{mid.p99_us:9,.0f}"
            f"{mid.batch_size:7.1f}{mid.client_cpu_us:8.1f}  {total:.1f} = {cpu}"
        )
    return "\n".join(lines)


def ratio_table(found: Sequence[Ratio]) -> str:
    lines = [
        "Nereid / Triton (Python backend), medians of the rounds' ratios",
        f"{'':6}{'':>6}{'infer/s':>9}{'lowest':>9}{'highest':>9}{'p50':>7}{'p99':>7}{'CPU':>7}",
    ]
    lines += [
        f"{each.protocol:6}{each.concurrency:>6}{each.infer_per_s:9.2f}"
        f"{each.lowest_infer_per_s:9.2f}{each.highest_infer_per_s:9.2f}"
        f"{each.p50:7.2f}{each.p99:7.2f}{each.cpu:7.2f}  {each.outcome}"
        for each in sorted(found, key=lambda each: (each.protocol, each.concurrency))
    ]
    return "\n".join(lines)


def document(samples: Samples, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "about": about,
        "cells": [
            {
                **asdict(cell),
                "median": asdict(middle(here)),
                "rounds": [asdict(each) for each in here],
            }
            for cell, here in samples.items()
        ],
        "ratios": [{**asdict(each), "outcome": each.outcome} for each in ratios(samples)],
    }
