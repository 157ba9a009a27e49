"""Durations and tokens of calls, as OpenTelemetry's conventions for generative AI name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability import metrics
from nereid.observability.metrics_page import Histogram

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Family, Page

# Bounds that the conventions recommend, in seconds and in tokens.
_DURATIONS: Final = tuple(0.01 * 2**power for power in range(14))
_TOKENS: Final = tuple(4**power for power in range(14))
_FIRST_TOKENS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_NEXT_TOKENS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# Combinations of labels. Further models share the empty name.
_MAX_SERIES: Final = 128

_Labels = tuple[tuple[str, str], ...]


class CallMetrics:
    """Histograms of one gateway's calls."""

    def __init__(self) -> None:
        self._durations = _Histograms(metrics.GEN_AI_DURATION, _DURATIONS)
        self._tokens = _Histograms(metrics.GEN_AI_TOKENS, _TOKENS)
        self._first_tokens = _Histograms(metrics.GEN_AI_FIRST_TOKEN, _FIRST_TOKENS)
        self._next_tokens = _Histograms(metrics.GEN_AI_NEXT_TOKEN, _NEXT_TOKENS)

    def add_call(self, operation: str, model: str, seconds: float, error: str = "") -> None:
        """Count a call. model and error (a class): empty if there is none."""
        labels = _labels(operation, model)
        self._durations.observe((*labels, ("error_type", error)), seconds)

    def add_output(
        self, operation: str, model: str, first_s: float, rest_s: float, tokens: int
    ) -> None:
        """Count a generated output: the time to its first token, and the time of the others."""
        labels = _labels(operation, model)
        self._first_tokens.observe(labels, first_s)
        if tokens > 1:
            self._next_tokens.observe(labels, rest_s / (tokens - 1))

    def add_tokens(self, operation: str, model: str, kind: str, tokens: int) -> None:
        """Count a call's tokens. kind: input or output."""
        self._tokens.observe((*_labels(operation, model), ("gen_ai_token_type", kind)), tokens)

    def write(self, page: Page) -> None:
        """Add all series to a page."""
        self._durations.write(page)
        self._tokens.write(page)
        self._first_tokens.write(page)
        self._next_tokens.write(page)


class _Histograms:
    def __init__(self, family: Family, bounds: tuple[float, ...]) -> None:
        self._family = family
        self._bounds = bounds
        self._series: dict[_Labels, tuple[Histogram, list[float]]] = {}

    def observe(self, labels: _Labels, value: float) -> None:
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= _MAX_SERIES:
                labels = tuple((key, "" if key == _MODEL else text) for key, text in labels)
            series = self._series.setdefault(labels, (Histogram(self._bounds), [0.0]))
        histogram, total = series
        histogram.observe(value)
        total[0] += value

    def write(self, page: Page) -> None:
        for labels, (histogram, total) in self._series.items():
            page.add_histogram(self._family, dict(labels), histogram, total[0])


_MODEL: Final = "gen_ai_request_model"


def _labels(operation: str, model: str) -> _Labels:
    return (
        ("gen_ai_operation_name", operation),
        ("gen_ai_provider_name", "nereid"),
        (_MODEL, model),
    )
