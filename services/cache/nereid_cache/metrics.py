"""The cache's own metrics page, made from the counters of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.observability.metrics import write_cache

if TYPE_CHECKING:
    from nereid.observability.metrics_page import Page
    from nereid_cache.service import CacheService


def write(service: CacheService, page: Page) -> None:
    """Add the counters of the cache's store to a metrics page."""
    write_cache(page, service.usage.to_proto())
