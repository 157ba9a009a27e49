"""A metrics page in Prometheus' text format, version 0.0.4, and the values that it can show.

Prometheus' own library appends _total to names, which Triton's lack. Pages between services may
contain exemplars, which only OpenMetrics can show (openmetrics.py).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

CONTENT_TYPE: Final = "text/plain; charset=utf-8"
# Start of an exemplar. No label's value contains this, since quotes in values are escaped.
EXEMPLAR: Final = b' # {trace_id="'
_COUNTING: Final = frozenset({"counter", "histogram", "summary"})
# Mark of a quantile's line. No label's value contains it either.
_QUANTILE: Final = 'quantile="'
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Models describe their own metrics, so a description must not start a new line.
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family(NamedTuple):
    """One metric: its name, type and meaning, and the names of its series' labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


class Page:
    """Series grouped by family, in the order in which the families were added."""

    def __init__(self, labels: Mapping[str, str] | None = None, *, exemplars: bool = False) -> None:
        """Create an empty page; all series get `labels`. `exemplars`: whether to show exemplars."""
        self._lines: dict[Family, list[str]] = {}
        self._labels = _label_text(labels or {})
        self._exemplars = exemplars

    def add_value(
        self, family: Family, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add the value of one series."""
        self._write(family, family.name, value, _label_text(labels or {}))

    def add_histogram(
        self, family: Family, labels: Mapping[str, str], observed: Histogram, total: float
    ) -> None:
        """Add a histogram; total is the sum of all observed values."""
        cumulative = 0
        exemplars = _exemplar_texts(observed) if self._exemplars else {}
        bounds = (*observed.bounds, float("inf"))
        lines = self._lines.setdefault(family, [])
        # Most of a page's lines are of histograms, so labels are written once.
        text = ",".join(filter(None, (self._labels, _label_text(labels))))
        start = f"{family.name}_bucket{{{text},le=" if text else f"{family.name}_bucket{{le="
        for index, (bound, count) in enumerate(zip(bounds, observed.counts, strict=True)):
            cumulative += count
            lines.append(f'{start}"{_number(bound)}"}} {cumulative}{exemplars.get(index, "")}')
        self._write(family, family.name + "_sum", total, _label_text(labels))
        self._write(family, family.name + "_count", cumulative, _label_text(labels))

    def add_summary(
        self, family: Family, labels: Mapping[str, str], observed: Summary, quantiles: Quantiles
    ) -> None:
        """Add a summary: its sum, its count, and these quantiles of its latest values."""
        for quantile, value in zip(quantiles, observed.at(quantiles), strict=True):
            text = _label_text({**labels, "quantile": _number(quantile)})
            self._write(family, family.name, value, text)
        self._write(family, family.name + "_sum", observed.total, _label_text(labels))
        self._write(family, family.name + "_count", observed.count, _label_text(labels))

    def encode(self) -> bytes:
        """Return the page as bytes, as it is served."""
        lines = []
        for family, series in self._lines.items():
            if family.help:
                lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += series
        return "".join(line + "\n" for line in lines).encode()

    def encode_counts(self) -> bytes:
        """Return the page as bytes without gauges and quantiles, which are not counts."""
        counts = Page()
        for family, series in self._lines.items():
            if family.kind in _COUNTING:
                counts._lines[family] = [line for line in series if _QUANTILE not in line]
        return counts.encode()

    def _write(
        self, family: Family, name: str, value: float, labels: str, exemplar: str = ""
    ) -> None:
        if self._labels:
            labels = f"{self._labels},{labels}" if labels else self._labels
        line = f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"
        self._lines.setdefault(family, []).append(line + exemplar)


def merge_pages(pages: Iterable[bytes], summed: Collection[str] = ()) -> bytes:
    """Return one page with the series of all pages, in which each family appears once.

    If a series repeats, the first value counts. In `summed` families the values are added up,
    except for quantiles.
    """
    heads: dict[bytes, list[bytes]] = {}
    # Key: a family's name. Value: by name and labels, a series' value and exemplar.
    series: dict[bytes, dict[bytes, tuple[bytes, bytes]]] = {}
    for page in pages:
        head: list[bytes] = []
        name = b""
        for line in page_lines(page):
            if line.startswith(b"# "):
                # "# HELP name ..." or "# TYPE name ...", once per family on each page.
                name = line.split(b" ", 3)[2]
                if name not in series:
                    head = heads[name] = []
                    series[name] = {}
                if heads[name] is head:
                    head.append(line)
                continue
            sample, mark, exemplar = line.partition(EXEMPLAR)
            key, _, value = sample.rpartition(b" ")
            known = series[name].get(key)
            if known is None:
                series[name][key] = value, mark + exemplar
            elif name.decode() in summed and b"quantile=" not in key:
                total = _number(float(known[0]) + float(value)).encode()
                series[name][key] = total, known[1] or mark + exemplar
    lines = []
    for name, samples in series.items():
        lines += heads[name]
        lines += [b"%b %b%b" % (key, *sample) for key, sample in samples.items()]
    return b"".join(line + b"\n" for line in lines)


def replace_series(page: bytes, replacements: Iterable[bytes]) -> bytes:
    """Return the page with newer values from pages that share a series with it."""
    shown = _samples(page)
    chosen = [other for other in replacements if not shown.keys().isdisjoint(_samples(other))]
    if not chosen:
        return page
    values: dict[bytes, bytes] = {}
    for other in chosen:
        values |= _samples(other)
    lines = []
    for line in page_lines(page):
        sample, mark, exemplar = line.partition(EXEMPLAR)
        name, _, value = sample.rpartition(b" ")
        lines.append(b"%b %b%b%b\n" % (name, values.get(name, value), mark, exemplar))
    replaced = b"".join(lines)
    return replaced if values.keys() <= shown.keys() else merge_pages((replaced, *chosen))


def _samples(page: bytes) -> dict[bytes, bytes]:
    samples: dict[bytes, bytes] = {}
    for line in page_lines(page):
        if not line.startswith(b"# "):
            name, _, value = line.partition(EXEMPLAR)[0].rpartition(b" ")
            samples[name] = value
    return samples


def page_lines(page: bytes) -> list[bytes]:
    """Return a page's lines. Unlike splitlines(), keep carriage returns in labels."""
    return page.removesuffix(b"\n").split(b"\n") if page else []


Quantiles = tuple[float, ...]


class Exemplar(NamedTuple):
    """An observed value, the id of its trace, and the monotonic time of the observation."""

    trace_id: bytes
    value: float
    at_ns: int


class Histogram:
    """Counts of values between bounds; a value equal to a bound counts as below the bound."""

    __slots__ = ("bounds", "counts", "exemplars")

    def __init__(self, bounds: Sequence[float], counts: list[int] | None = None) -> None:
        self.bounds = tuple(bounds)
        # The last element counts the values above all bounds.
        self.counts = [0] * (len(self.bounds) + 1) if counts is None else counts
        # Key: a bucket's index. Value: its latest exemplar.
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that occurred the given number of times."""
        self.counts[bisect_left(self.bounds, value)] += times

    def set_exemplar(self, exemplar: Exemplar) -> None:
        """Keep the exemplar as the latest one of its bucket."""
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar


class Summary:
    """The sum and count of all values. Quantiles are computed from the latest values only."""

    __slots__ = ("_latest", "count", "total")

    # Number of latest values to keep; enough for the quantile 0.999.
    WINDOW: Final = 4096

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._latest: deque[float] = deque(maxlen=self.WINDOW)

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value that occurred the given number of times."""
        self.count += times
        self.total += value * times
        self._latest.extend(repeat(value, min(times, self.WINDOW)))

    def observe_all(self, values: Collection[float]) -> None:
        """Add these values."""
        self.count += len(values)
        self.total += sum(values)
        self._latest.extend(values)

    def at(self, quantiles: Quantiles) -> list[float]:
        """Return the values at these quantiles; NaN, as in Prometheus, if there are no values."""
        ordered = sorted(self._latest)
        if not ordered:
            return [float("nan")] * len(quantiles)
        last = len(ordered) - 1
        return [ordered[round(quantile * last)] for quantile in quantiles]


def _exemplar_texts(observed: Histogram) -> dict[int, str]:
    offset_ns = time.time_ns() - time.monotonic_ns()
    return {
        index: f'{EXEMPLAR.decode()}{exemplar.trace_id.hex()}"}} {exemplar.value!r}'
        f" {(exemplar.at_ns + offset_ns) / 1e9:.3f}"
        for index, exemplar in observed.exemplars.items()
    }


def _label_text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    return str(int(value)) if value == int(value) else repr(value)
