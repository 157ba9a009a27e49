"""Reads a metrics page: the samples by name and labels. Pure."""

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


# A metric's name, and labels.
Series = tuple[str, dict[str, str]]


class Samples:
    """Those of one page."""

    def __init__(
        self, page: bytes, prefix: str = "", known: dict[bytes, Series] | None = None
    ) -> None:
        """Lines that are no samples of metrics with this prefix are ignored. known: names and
        labels by the text of a line before its value. They are remembered there, so that the same
        lines of the next page need not be parsed.
        """
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        start = prefix.encode()
        for line in page_lines(page):
            if not line.startswith(start):
                continue
            series, _, text = line.rpartition(b" ")
            found = None if known is None else known.get(series)
            if found is None:
                match = _SAMPLE.fullmatch(line.decode("utf-8", "replace"))
                if match is None:
                    continue
                found = match["name"], _labels(match["labels"] or "")
                # A line with a time behind the value is parsed each time.
                if known is not None and match["value"].encode() == text:
                    known[series] = found
                text = match["value"].encode()
            with suppress(ValueError):
                sample = found[1], float(text)
                self._samples.setdefault(found[0], []).append(sample)

    def samples(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The samples of a metric that have these labels."""
        for found, value in self._samples.get(name, ()):
            if labels.items() <= found.items():
                yield found, value

    def total(self, name: str, **labels: str) -> float | None:
        """Their sum; None: there is none."""
        values = [value for _, value in self.samples(name, **labels)]
        return sum(values) if values else None

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Their sums by the value of one more label."""
        sums: dict[str, float] = {}
        for found, value in self.samples(name, **labels):
            if label in found:
                sums[found[label]] = sums.get(found[label], 0.0) + value
        return sums

    def split(self, *labels: str) -> dict[tuple[str, ...], Samples]:
        """Apart by the values of these labels; those that lack one of them: ()."""
        parts: dict[tuple[str, ...], Samples] = {}
        for name, samples in self._samples.items():
            for each in samples:
                found = each[0]
                key: tuple[str, ...] = ()
                if all(label in found for label in labels):
                    key = tuple(found[label] for label in labels)
                part = parts.get(key)
                if part is None:
                    part = parts[key] = Samples(b"")
                part._samples.setdefault(name, []).append(each)
        return parts

    def extend(self, other: Samples) -> None:
        """Add those of another page, or of another part of it."""
        for name, samples in other._samples.items():
            self._samples.setdefault(name, []).extend(samples)

    @classmethod
    def joined(cls, *parts: Samples) -> Samples:
        """Those of all of them."""
        joined = cls(b"")
        for part in parts:
            joined.extend(part)
        return joined

    def same_as(self, other: Samples) -> bool:
        """Whether both have the same values."""
        return self._samples == other._samples


def _labels(text: str) -> dict[str, str]:
    return {each["name"]: _ESCAPED.sub(_unescaped, each["value"]) for each in _LABEL.finditer(text)}


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
