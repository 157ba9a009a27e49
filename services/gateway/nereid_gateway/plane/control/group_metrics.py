"""Exchange of metrics in a group of gateways: a scrape gets the same page from any gateway.

Each gateway serves its series on a unix socket in the group's directory, with its number as a
label. A gateway that does not respond is left out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from nereid.observability.metrics_endpoint import MetricsEndpoint
from nereid.observability.metrics_page import merge_pages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nereid.observability.metrics_page import Page

_log = logging.getLogger(__name__)

_LABEL: Final = "gateway"
_TIMEOUT_S: Final = 1.0
_MAX_PAGE_BYTES: Final = 1 << 20
_REQUEST: Final = b"GET /metrics HTTP/1.1\r\n\r\n"


class GroupMetrics:
    """One gateway's part in the exchange. Call start() once and close() once."""

    def __init__(
        self, number: int, size: int, directory: Path, write: Callable[[Page], None]
    ) -> None:
        """Find the group's sockets. write: adds this gateway's series to a page."""
        self._number = number
        self._paths = [directory / f"metrics-{member}.sock" for member in range(size)]
        self._endpoint = MetricsEndpoint(write, {_LABEL: str(number)})
        # Gateways that did not respond for the last page. Each change is logged once.
        self._missing: set[Path] = set()

    async def start(self) -> None:
        """Serve this gateway's series to the others. Raises OSError if binding fails."""
        await self._endpoint.listen(f"unix:{self._paths[self._number]}", 0)

    async def read_page(self) -> bytes:
        """Return the series of all gateways, in the order of their numbers."""
        return merge_pages(await asyncio.gather(*map(self._read_page, self._paths)))

    async def close(self) -> None:
        """Stop serving this gateway's series."""
        await self._endpoint.close()

    async def _read_page(self, path: Path) -> bytes:
        try:
            page = await _fetch_page(path)
        except (OSError, TimeoutError) as error:
            if path not in self._missing:
                self._missing.add(path)
                _log.info("a metrics page lacks the series of a gateway: %s: %r", path.name, error)
            return b""
        self._missing.discard(path)
        return page


async def _fetch_page(path: Path) -> bytes:
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_PAGE_BYTES)
        try:
            writer.write(_REQUEST)
            head, _, page = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.close()
    return page if b" 200 " in head.partition(b"\r\n")[0] else b""
