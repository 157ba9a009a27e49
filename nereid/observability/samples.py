"""Reader of metrics pages, which finds samples by name and labels."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nereid.observability.metrics_page import page_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SAMPLE: Final = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \S+)?")
_LABEL: Final = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


# Name of a metric, and the labels of one of its series.
Series = tuple[str, dict[str, str]]


class Samples:
    """The samples of a metrics page, or of a part of one."""

    def __init__(
        self, page: bytes, prefix: str = "", known: dict[bytes, Series] | None = None
    ) -> None:
        """Read the samples of metrics with this prefix; cache parsed labels in `known`."""
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        start = prefix.encode()
        for line in page_lines(page):
            if not line.startswith(start):
                continue
            series, _, text = line.rpartition(b" ")
            parsed = None if known is None else known.get(series)
            if parsed is None:
                match = _SAMPLE.fullmatch(line.decode("utf-8", "replace"))
                if match is None:
                    continue
                parsed = match["name"], _labels(match["labels"] or "")
                # A line with a timestamp after the value is parsed each time.
                if known is not None and match["value"].encode() == text:
                    known[series] = parsed
                text = match["value"].encode()
            with suppress(ValueError):
                sample = parsed[1], float(text)
                self._samples.setdefault(parsed[0], []).append(sample)

    def samples(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield labels and value of each sample of a metric, if the sample has these labels."""
        for own_labels, value in self._samples.get(name, ()):
            if labels.items() <= own_labels.items():
                yield own_labels, value

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric's samples with these labels; `None` if there are none."""
        values = [value for _, value in self.samples(name, **labels)]
        return sum(values) if values else None

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sum a metric's samples that have these labels, by the values of the label `label`."""
        sums: dict[str, float] = {}
        for own_labels, value in self.samples(name, **labels):
            if label in own_labels:
                sums[own_labels[label]] = sums.get(own_labels[label], 0.0) + value
        return sums

    def split(self, *labels: str) -> dict[tuple[str, ...], Samples]:
        """Return the samples by the values of these labels; those that lack one are under ()."""
        parts: dict[tuple[str, ...], Samples] = {}
        for name, samples in self._samples.items():
            for sample in samples:
                own_labels = sample[0]
                key: tuple[str, ...] = ()
                if all(label in own_labels for label in labels):
                    key = tuple(own_labels[label] for label in labels)
                part = parts.get(key)
                if part is None:
                    part = parts[key] = Samples(b"")
                part._samples.setdefault(name, []).append(sample)
        return parts

    def extend(self, other: Samples) -> None:
        """Add the samples of another page, or of another part of the same page."""
        for name, samples in other._samples.items():
            self._samples.setdefault(name, []).extend(samples)

    @classmethod
    def joined(cls, *parts: Samples) -> Samples:
        """Return the samples of all parts."""
        joined = cls(b"")
        for part in parts:
            joined.extend(part)
        return joined

    def same_as(self, other: Samples) -> bool:
        """Return whether the other object has the same samples with the same values."""
        return self._samples == other._samples


def _labels(text: str) -> dict[str, str]:
    return {
        label["name"]: _ESCAPED.sub(_unescaped, label["value"]) for label in _LABEL.finditer(text)
    }


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
