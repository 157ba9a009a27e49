"""The cache's own metrics page, from what its store counts anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.observability.metrics import Page, write_cache

if TYPE_CHECKING:
    from nereid.services.cache.service import CacheService


def write(service: CacheService, page: Page) -> None:
    """What the store is like now."""
    write_cache(page, service.usage.to_proto())
