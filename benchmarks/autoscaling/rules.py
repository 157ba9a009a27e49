"""Evaluates the recording rules of deploy/prometheus/rules over scraped pages.

The module does no I/O.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW_S = 60.0
_QUEUE = "nv_inference_queue_duration_us"
_SUCCESS = "nv_inference_request_success"
_PENDING = "nereid_pending_requests"
_INSTANCES = "nereid_instances"
_SERIES = re.compile(rf"({_QUEUE}|{_SUCCESS}|{_PENDING}|{_INSTANCES})\{{(.*)\}} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Labels = frozenset[tuple[str, str]]


class _Sample(NamedTuple):
    at_s: float
    value: float


class Recorded(NamedTuple):
    """Values of the rules; `None` means that no sample of a model has come yet.

    queue_time_us: largest value of nereid:model_queue_time_us:increase1m over all models. demand:
    nereid:device_demand:sum over all devices. busy_ratio: largest value of
    nereid:model_busy_ratio:avg1m over all models.
    """

    queue_time_us: float | None
    demand: float
    busy_ratio: float | None


class RuleWindow:
    """Samples of the last minute. Times that are passed to the methods must not decrease."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Labels], deque[_Sample]] = {}

    def scrape(self, at_s: float, page: str) -> None:
        """Add a page's samples."""
        for line in page.splitlines():
            found = _SERIES.fullmatch(line)
            if found is not None:
                labels = frozenset(_LABEL.findall(found[2]))
                samples = self._series.setdefault((found[1], labels), deque())
                samples.append(_Sample(at_s, float(found[3])))

    def evaluate(self, now_s: float) -> Recorded:
        """Return the values of the rules for the last minute, and forget earlier samples."""
        for samples in self._series.values():
            while samples and samples[0].at_s < now_s - WINDOW_S:
                samples.popleft()
        queued, served = self._increase_by(_QUEUE, now_s), self._increase_by(_SUCCESS, now_s)
        times = [queued[model] / (1 + served.get(model, 0)) for model in queued]
        pending = sum(
            samples[-1].value for (name, _), samples in self._series.items()
            if name == _PENDING and samples
        )  # fmt: skip
        demand = pending + (sum(served.values()) > 0)
        busy, ready = self._average_by_model("busy"), self._average_by_model()
        ratios = [busy[model] / ready[model] for model in busy if ready[model]]
        return Recorded(
            max(times, default=None), demand, max(ratios, default=0.0 if ready else None)
        )

    def _increase_by(self, name: str, now_s: float) -> dict[str, float]:
        """Return the increase by model."""
        totals: dict[str, float] = {}
        for (each, labels), samples in self._series.items():
            if each == name and len(samples) > 1:
                model = dict(labels)["model"]
                totals[model] = totals.get(model, 0) + increase(samples, now_s)
        return totals

    def _average_by_model(self, state: str = "") -> dict[str, float]:
        """Return the mean over the window of the number of instances in this state, or in any."""
        totals: dict[str, float] = {}
        for (name, labels), samples in self._series.items():
            given = dict(labels)
            if name == _INSTANCES and samples and state in {"", given["state"]}:
                mean = sum(sample.value for sample in samples) / len(samples)
                totals[given["model"]] = totals.get(given["model"], 0) + mean
        return totals


def increase(samples: Iterable[tuple[float, float]], now_s: float) -> float:
    """Return a counter's growth over the last WINDOW_S, as Prometheus estimates it.

    There must be at least two samples.
    """
    window = list(samples)
    (first_s, first), (last_s, last) = window[0], window[-1]
    grown = last - first
    before = first
    for _, value in window[1:]:
        if value < before:
            grown += before
        before = value
    covered_s = last_s - first_s
    gap_s = covered_s / (len(window) - 1)
    start_s, end_s = first_s - (now_s - WINDOW_S), now_s - last_s
    if grown > 0 and first >= 0:
        # A counter cannot have been below zero.
        start_s = min(start_s, covered_s * first / grown)
    limit_s = 1.1 * gap_s
    reach_s = covered_s + sum(gap if gap < limit_s else gap_s / 2 for gap in (start_s, end_s))
    return grown * reach_s / covered_s
