"""Aims of the project, and whether a run meets them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.figures.ratios import OURS, Ratio, Spread, over_bare, ratios
from benchmarks.figures.samples import BARE, Samples


@dataclass(frozen=True)
class Aim:
    """Aim of the project.

    figure: "rate" (must be at least the limit), "p50" or "cpu" (must be at most the limit).
    concurrency: `None` means that the best result at any concurrency counts.
    """

    model: str
    ours: str
    theirs: str
    protocol: str
    concurrency: int | None
    figure: str
    limit: float

    @property
    def sign(self) -> str:
        """Sign between the figure and its limit."""
        return "≥" if self.figure == "rate" else "≤"

    def is_met(self, value: float) -> bool:
        """Return whether a value meets the aim."""
        return value >= self.limit if self.figure == "rate" else value <= self.limit

    def applies_to(self, ratio: Ratio) -> bool:
        """Return whether the aim is about this ratio."""
        return self.concurrency in (None, ratio.concurrency) and (
            (self.model, self.ours, self.theirs, self.protocol)
            == (ratio.model, ratio.ours, ratio.theirs, ratio.protocol)
        )


@dataclass(frozen=True)
class Outcome:
    """Outcome of an aim in a run."""

    aim: Aim
    concurrency: int
    value: Spread

    @property
    def is_met(self) -> bool:
        """True if the median meets the aim."""
        return self.aim.is_met(self.value.median)


def _aims() -> Iterator[Aim]:
    for protocol, rates in (("grpc", {16: 2.6, 64: 2.5}), ("http", {16: 2.2, 64: 2.2})):
        yield Aim("mlp", OURS, "triton", protocol, 1, "p50", 0.60)
        for concurrency, limit in rates.items():
            yield Aim("mlp", OURS, "triton", protocol, concurrency, "rate", limit)
        yield Aim("mlp", OURS, "triton", protocol, 64, "cpu", 0.35)
    for protocol in ("grpc", "http"):
        for concurrency in (1, 16, 64):
            yield Aim("python", OURS, "triton", protocol, concurrency, "rate", 1.5)
    for model in ("minilm", "resnet50"):
        for protocol in ("grpc", "http"):
            yield Aim(model, OURS, BARE, protocol, None, "rate", 0.98)
    for protocol in ("grpc", "json"):
        yield Aim("mlp", OURS, "mlserver", protocol, 64, "rate", 8.0)


AIMS = tuple(_aims())


def outcomes(samples: Samples, aims: Sequence[Aim] = AIMS) -> list[Outcome]:
    """Return the outcomes of the aims that the run has figures for."""
    found = [*ratios(samples), *over_bare(samples)]
    return [
        Outcome(aim, ratio.concurrency, getattr(ratio, aim.figure))
        for aim in aims
        for ratio in found
        if aim.applies_to(ratio)
    ]
