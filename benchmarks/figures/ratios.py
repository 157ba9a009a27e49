"""Ratios between peers, computed for each round: medians and spreads over the rounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.figures.samples import BARE, Cell, Sample, Samples, middle

OURS = "nereid"


@dataclass(frozen=True)
class Spread:
    """Median and spread of the ratios of all rounds."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f})"


@dataclass(frozen=True)
class Ratio:
    """Figures of one peer divided by another's. A higher rate is better; other figures: lower."""

    model: str
    protocol: str
    concurrency: int
    ours: str
    theirs: str
    rate: Spread
    p50: Spread
    p99: Spread
    cpu: Spread


def is_ours(peer: str) -> bool:
    """Return whether a peer is Nereid, or one of its variants: nereid-NAME."""
    return peer == OURS or peer.startswith(f"{OURS}-")


def ratios(samples: Samples) -> list[Ratio]:
    """Return the ratios of Nereid to other servers, and of its variants to default Nereid."""
    peers = sorted({cell.peer for cell in samples} - {BARE})
    found = []
    for cell in samples:
        for theirs in peers:
            if not is_ours(cell.peer) or theirs == cell.peer or theirs.startswith(f"{OURS}-"):
                continue
            other = Cell(cell.model, theirs, cell.protocol, cell.concurrency)
            if other in samples:
                found.append(_ratio(samples, cell, other))
    return sorted(found, key=lambda ratio: (ratio.theirs, ratio.ours))


def over_bare(samples: Samples) -> list[Ratio]:
    """Return the ratios of Nereid at its best concurrency to the bare loop at its best batch."""
    found = []
    for model in dict.fromkeys(cell.model for cell in samples):
        bare = _best(samples, model, BARE, None)
        if bare is None:
            continue
        keys = {(c.peer, c.protocol) for c in samples if c.model == model and is_ours(c.peer)}
        for peer, protocol in sorted(keys):
            own = _best(samples, model, peer, protocol)
            if own is not None:
                found.append(_ratio(samples, own, bare))
    return found


def _best(samples: Samples, model: str, peer: str, protocol: str | None) -> Cell | None:
    cells = [
        cell
        for cell in samples
        if (cell.model, cell.peer) == (model, peer) and protocol in (None, cell.protocol)
    ]
    return max(cells, key=lambda cell: middle(samples[cell]).infer_per_s, default=None)


def _ratio(samples: Samples, cell: Cell, other: Cell) -> Ratio:
    # An interrupted run may lack a last round.
    pairs = list(zip(samples[cell], samples[other], strict=False))
    return Ratio(
        model=cell.model,
        protocol=cell.protocol,
        concurrency=cell.concurrency,
        ours=cell.peer,
        theirs=other.peer,
        rate=_spread(pairs, lambda pair: pair.infer_per_s),
        p50=_spread(pairs, lambda pair: pair.p50_us),
        p99=_spread(pairs, lambda pair: pair.p99_us),
        cpu=_spread(pairs, lambda pair: sum(pair.cpu_us.values())),
    )


def _spread(pairs: Sequence[tuple[Sample, Sample]], figure: Callable[[Sample], float]) -> Spread:
    each = list(_paired(pairs, figure)) or [0.0]
    return Spread(median(each), min(each), max(each))


def _paired(
    pairs: Sequence[tuple[Sample, Sample]], figure: Callable[[Sample], float]
) -> Iterator[float]:
    for own, other in pairs:
        if figure(other):
            yield figure(own) / figure(other)
