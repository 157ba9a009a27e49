"""Metrics of a service's own process. prometheus_client takes some 40 ms to import."""

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
    """Load the collectors in a thread; in an event loop, await this before write_process()."""
    if not _collectors.cache_info().currsize:
        await asyncio.to_thread(_collectors)


def write_process(page: Page) -> None:
    """Add metrics of this process: CPU, memory, descriptors, garbage collections and Python."""
    for family, metric in _metrics():
        for sample in metric.samples:
            page.add_value(family, sample.value, sample.labels)


def process_families() -> list[Family]:
    """Return the families that write_process() adds."""
    return [family for family, _ in _metrics()]


def _metrics() -> Iterator[tuple[Family, Metric]]:
    """Yield each metric with its family; a counter's own name lacks _total."""
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
