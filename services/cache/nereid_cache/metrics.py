"""The cache's own metrics page, from its store's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.observability.metrics import write_cache

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Page
    from nereid_cache.service import CacheService


def write(service: CacheService, page: Page) -> None:
    """Write the counters of the cache's store."""
    write_cache(page, service.usage.to_proto())
