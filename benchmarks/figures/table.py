"""Figures as text for a terminal. This module must not know how figures are measured."""

from collections.abc import Sequence

from benchmarks.figures.aims import Outcome
from benchmarks.figures.ratios import Ratio
from benchmarks.figures.samples import Samples, middle


def table(samples: Samples) -> str:
    """Return the samples' medians as a table."""
    columns = ("infer/s", "lowest", "highest", "p50 us", "p99 us")
    head = "".join(f"{column:>10}" for column in columns)
    lines = [f"{'':50}{head}{'batch':>7}{'client':>8}  CPU us per request"]
    models = list(dict.fromkeys(cell.model for cell in samples))
    for cell in sorted(
        samples, key=lambda c: (models.index(c.model), c.protocol, c.concurrency, c.peer)
    ):
        here = samples[cell]
        mid = middle(here)
        rates = [sample.infer_per_s for sample in here]
        cpu = "  ".join(f"{name} {cpu_us:.1f}" for name, cpu_us in mid.cpu_us.items())
        total = sum(mid.cpu_us.values())
        lines.append(
            f"{cell.model:10}{cell.protocol:7}{cell.concurrency:>5}  {cell.peer:26}"
            f"{_rate(mid.infer_per_s)}{_rate(min(rates))}{_rate(max(rates))}"
            f"{mid.p50_us:10,.0f}{mid.p99_us:10,.0f}"
            f"{mid.batch_size:7.1f}{mid.client_cpu_us:8.1f}  {total:.1f} = {cpu}"
        )
    return "\n".join(lines)


def _rate(value: float) -> str:
    return f"{value:10,.0f}" if value >= 100 else f"{value:10.1f}"


def ratio_table(found: Sequence[Ratio]) -> str:
    """Return ratios as a table."""
    lines = [
        "ratios: medians of the rounds' own, and the lowest and highest of the rate",
        f"{'':66}{'infer/s':>9}{'lowest':>9}{'highest':>9}{'p50':>7}{'p99':>7}{'CPU':>7}",
    ]
    lines += [
        f"{ratio.model:10}{ratio.protocol:7}{ratio.concurrency:>5}  {_compared(ratio):42}"
        f"{ratio.rate.median:9.2f}{ratio.rate.lowest:9.2f}{ratio.rate.highest:9.2f}"
        f"{ratio.p50.median:7.2f}{ratio.p99.median:7.2f}{ratio.cpu.median:7.2f}"
        for ratio in found
    ]
    return "\n".join(lines)


def _compared(ratio: Ratio) -> str:
    return f"{ratio.ours} / {ratio.theirs}"


def outcome_table(found: Sequence[Outcome]) -> str:
    """Return the aims' outcomes as a table."""
    lines = ["aims"]
    for outcome in found:
        aim = outcome.aim
        compared = f"{aim.ours} / {aim.theirs}"
        lines.append(
            f"{aim.model:10}{aim.protocol:7}{outcome.concurrency:>5}  {compared:28}{aim.figure:5}"
            f"{outcome.value!s:24} {aim.sign} {aim.limit:.2f}"
            f"  {'met' if outcome.is_met else 'MISSED'}"
        )
    met = sum(outcome.is_met for outcome in found)
    return "\n".join((*lines, f"{met} of {len(found)} met"))
