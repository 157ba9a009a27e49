"""Reports this scheduler's counts of its models to callers, which outlive the scheduler."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from nereid.observability.counts.count_exchange import CountSource
from nereid.observability.metrics_page import Page
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_scheduler.pages.metrics import SchedulerMetrics
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
    from nereid_scheduler.versions.model_version import ModelVersion

# Every caller asks at least once within this time: it pauses for at most half of this time.
_KNOWN_NS: Final = 10_000_000_000


class CountsReport:
    """Responds to CountsRequests. Keeps counts of ended schedulers, which come with requests."""

    def __init__(
        self,
        catalogue: Catalogue,
        metrics: SchedulerMetrics,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._source = CountSource(_random())
        self._store = self._source.store
        # `_known_change`: last change that all callers know. `_marked_change`: last change at the
        # time `_marked_ns`; after _KNOWN_NS all callers know it.
        self._known_change = self._marked_change = 0
        self._marked_ns = monotonic_ns()
        self._last: dict[ServedVersion, pb.VersionCounts] = {}
        self._last_own = pb.VersionCounts(id=_random(), loaded_ns=now_ns(), continues=True)

    def respond(self, request: pb.CountsRequest) -> pb.CountsResponse:
        """Keep the counts in a request; return what has changed since the caller's last request."""
        self._update()
        if self._monotonic_ns() - self._marked_ns > _KNOWN_NS:
            self._known_change, self._marked_change = self._marked_change, self._store.change
            self._marked_ns = self._monotonic_ns()
        return self._source.respond(request)

    def last_response(self) -> pb.CountsResponse:
        """Return the counts that some caller may not have yet, when this scheduler ends."""
        self._update()
        return self._source.changed_after(self._known_change)

    def on_handed_over(self, served: ServedVersion, runtime: ModelVersion) -> None:
        """Record a version's counts for the last time, as another scheduler continues them."""
        self._count(served, runtime)
        del self._last[served]

    def _update(self) -> None:
        serving = {
            served: served.runtime
            for served in self._catalogue.versions()
            if served.runtime is not None and served.load_duration_s is not None
        }
        unloaded = self._last.keys() - serving.keys()
        unloaded_ids = [self._last.pop(served).id for served in unloaded]
        self._store.end_loads(self._store.versions_of(unloaded_ids))
        for served, runtime in serving.items():
            self._count(served, runtime)
        page = Page()
        number = self._metrics.write_own_counts(page)
        if number > self._last_own.number or not self._last_own.exposition:
            self._last_own = _later(self._last_own, number, page)
            self._store.add(self._last_own)

    def _count(self, served: ServedVersion, runtime: ModelVersion) -> None:
        last = self._last.get(served)
        number = runtime.statistics.progress
        if last is not None and last.number == number:
            return
        page = Page()
        self._metrics.write_version(page, served, runtime)
        if last is None:
            last = self._first(served, runtime)
        counts = _later(last, number, page)
        counts.statistics.CopyFrom(runtime.statistics.to_proto(runtime.name, last.version))
        self._last[served] = counts
        self._store.add(counts)

    def _first(self, served: ServedVersion, runtime: ModelVersion) -> pb.VersionCounts:
        return pb.VersionCounts(
            id=_random(),
            model=served.name,
            version=str(runtime.number),
            # Each load must be later than the one before: clocks differ, and may be set back.
            loaded_ns=max(self._now_ns(), self._store.latest_load_ns + 1),
            continues=served.continues,
        )


def _later(last: pb.VersionCounts, number: int, page: Page) -> pb.VersionCounts:
    counts = pb.VersionCounts()
    counts.CopyFrom(last)
    counts.number, counts.exposition = number, page.encode_counts()
    return counts


def _random() -> int:
    return int.from_bytes(os.urandom(8), "little")
