"""What every service shows of its own process: prometheus_client's collectors.

Importing that library takes some 40 ms, which no start waits for: load_collectors() does it in a
thread before the first page is written.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING

from nereid.observability.metrics_page import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from nereid.observability.metrics_page import Page


async def load_collectors() -> None:
    """To be awaited before write_process, by code that runs in an event loop."""
    if not _collectors.cache_info().currsize:
        await asyncio.to_thread(_collectors)


def write_process(page: Page) -> None:
    """Add this process's use of CPU, memory and descriptors, its garbage collections, and its
    Python.
    """
    for family, metric in _metrics():
        for sample in metric.samples:
            page.add_value(family, sample.value, sample.labels)


def process_families() -> list[Family]:
    """What write_process adds."""
    return [family for family, _ in _metrics()]


def _metrics() -> Iterator[tuple[Family, Metric]]:
    """Each has series of one name, which a counter's own name lacks the end of."""
    for collector in _collectors():
        for metric in collector.collect():
            if metric.samples:
                first = metric.samples[0]
                labels = tuple(first.labels)
                yield Family(first.name, metric.type, metric.documentation, labels), metric


@cache
def _collectors() -> tuple[Collector, ...]:
    import prometheus_client as library  # noqa: PLC0415 - see above

    return library.PROCESS_COLLECTOR, library.GC_COLLECTOR, library.PLATFORM_COLLECTOR
