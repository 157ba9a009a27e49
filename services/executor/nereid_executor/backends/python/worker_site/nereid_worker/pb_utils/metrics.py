"""Metrics that models define, and that appear on the server's metrics page."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import re
import threading
import weakref
from typing import Any

from ..connection.executor_connection import current_connection
from ..protocol import wire
from ..values.arguments import instance_of, number_of, text_of
from ..values.enums import NamedEnum
from ..values.errors import TritonModelException

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_numbers = itertools.count(1)


class MetricKind(NamedEnum):
    """Kinds of metrics; models use them as attributes of `MetricFamily`."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


COUNTER, GAUGE, HISTOGRAM = MetricKind


class MetricFamily:
    """The metrics that share one name. A metric is exported for as long as the model holds it.

    A second family with the same name shares the metrics and the description of the first.
    """

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Make a family, or share the existing family that has this name.

        Raises TypeError for a wrong argument, TritonModelException if the name is invalid or exists
        with another kind.
        """
        name, description = text_of(name, "name"), text_of(description, "description")
        instance_of(kind, MetricKind, "MetricFamily(): kind")
        if not _NAME.match(name):
            raise _refused("Error when creating MetricFamily", "Invalid metric name")
        with _lock:
            self._family = _families.setdefault(name, _Family(name, description, kind))
        if self._family.kind is not kind:
            raise _refused(
                "Error when creating MetricFamily", "Family name already exists with different type"
            )

    def Metric(  # noqa: N802 - the API's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """Return the metric of the family with these labels; equal labels share one value.

        buckets: a histogram's upper bounds, strictly ascending, without infinity. Raises TypeError
        or TritonModelException for labels, RuntimeError or TritonModelException for buckets.
        """
        return Metric(self._family, labels, buckets)


class Metric:
    """One series of a family; exported while the model holds a metric for it. Thread-safe."""

    def __init__(self, family: _Family, labels: Any, buckets: Any) -> None:
        checked = _checked_labels(labels)
        bounds = _checked_bounds(family.kind, buckets)
        key = family.name, tuple(sorted(checked.items()))
        with _lock:
            series = _all_series.get(key)
            if series is None:
                series = _all_series[key] = _Series(family, checked, bounds)
        self._kind = family.kind
        self._series = series

    def increment(self, value: float, /) -> None:
        """Add a number to a counter or a gauge.

        Raises TypeError if value is no number, TritonModelException for a histogram or if a counter
        would decrease.
        """
        number = number_of(value, "value")
        if self._kind is MetricKind.HISTOGRAM:
            raise _unsupported("Increment", self._kind)
        if self._kind is MetricKind.COUNTER and number < 0:
            raise _refused(
                "Failed to increment metric value",
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
                "non-negative values.",
            )
        self._series.increase(number)

    def set(self, value: float, /) -> None:
        """Set a gauge; raise TypeError or TritonModelException (no gauge)."""
        number = number_of(value, "value")
        if self._kind is not MetricKind.GAUGE:
            raise _unsupported("Set", self._kind)
        self._series.set(number)

    def observe(self, value: float, /) -> None:
        """Count a number in a histogram. Errors are those of set()."""
        number = number_of(value, "value")
        if self._kind is not MetricKind.HISTOGRAM:
            raise _unsupported("Observe", self._kind)
        self._series.increase(number)

    def value(self) -> float:
        """Return a counter's or gauge's value; raise TritonModelException for a histogram."""
        if self._kind is MetricKind.HISTOGRAM:
            raise _unsupported("Value", self._kind, "get")
        return self._series.value


class _Family:
    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name, self.description, self.kind = name, description, kind


class _Series:
    def __init__(self, family: _Family, labels: dict[str, str], bounds: list[float]) -> None:
        # This reference keeps the family alive for as long as any of its metrics lives.
        self._family = family
        self._bounds = bounds
        # Observed values in each bucket of a histogram. The last bucket has no upper bound.
        self._counts = [0] * (len(bounds) + 1) if family.kind is MetricKind.HISTOGRAM else []
        self._number = next(_numbers)
        self._lock = threading.Lock()
        self.value = 0.0
        description = [family.name, family.description, int(family.kind), labels, bounds]
        current_connection().notify(wire.METRIC, ["new", self._number, *description])

    def increase(self, number: float) -> None:
        with self._lock:
            self.value += number
            if self._counts:
                self._counts[bisect.bisect_left(self._bounds, number)] += 1
            self._report_value()

    def set(self, number: float) -> None:
        with self._lock:
            self.value = number
            self._report_value()

    def _report_value(self) -> None:
        current_connection().notify(wire.METRIC, ["value", self._number, self.value, self._counts])

    def __del__(self) -> None:
        # The connection may already be closed when the interpreter exits.
        with contextlib.suppress(Exception):
            current_connection().notify(wire.METRIC, ["gone", self._number], finalizing=True)


_lock = threading.RLock()
_families: weakref.WeakValueDictionary[str, _Family] = weakref.WeakValueDictionary()
_all_series: weakref.WeakValueDictionary[Any, _Series] = weakref.WeakValueDictionary()


def _unsupported(what: str, kind: MetricKind, verb: str = "") -> TritonModelException:
    return _refused(
        f"Failed to {verb or what.lower()} metric value",
        f"TRITONSERVER_METRIC_KIND_{kind.name} does not support {what}",
    )


def _refused(what: str, why: str) -> TritonModelException:
    process = f"Failed to process the request for model '{current_connection().instance}'"
    return TritonModelException(f"{what}: {process}, message: {why}")


def _checked_labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    # A value that JSON cannot represent raises TypeError here.
    checked: dict[str, str] = json.loads(json.dumps(labels))
    for name, value in checked.items():
        if not isinstance(value, str):
            raise _refused(
                "Error when creating Metric", "attempt to access JSON non-string as string"
            )
        if not _LABEL.match(name):
            raise _refused("Error when creating Metric", "Invalid label name")
    return checked


def _checked_bounds(kind: MetricKind, buckets: Any) -> list[float]:
    if kind is not MetricKind.HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        return []
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    try:
        bounds = [number_of(bound, "buckets") for bound in buckets]
    except TypeError as error:
        raise RuntimeError(str(error)) from None
    neighbours = zip(bounds, bounds[1:])  # noqa: B905 - Python 3.9
    if any(low >= high for low, high in neighbours):
        raise _refused("Error when creating Metric", "Bucket Boundaries must be strictly sorted")
    return bounds
