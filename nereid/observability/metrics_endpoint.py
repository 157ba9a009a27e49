"""An HTTP listener for /metrics and health checks, for services without another HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from nereid.config.flags import listening_address
from nereid.observability import openmetrics
from nereid.observability.metrics_page import CONTENT_TYPE, Page
from nereid.observability.process_metrics import load_collectors, write_process
from nereid.rpc.net.listener import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    WritePage = Callable[[Page], None]
    IsReady = Callable[[], bool]

_log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES: Final = 16384
_REQUEST_TIMEOUT_S: Final = 5.0
# Any response to this path shows that the event loop runs.
_LIVE_PATH: Final = b"/v2/health/live"
_READY_PATH: Final = b"/v2/health/ready"


class MetricsEndpoint:
    """Listener for scrapes and health probes. Call listen() once, and close() once."""

    def __init__(
        self,
        write: WritePage,
        labels: Mapping[str, str] | None = None,
        is_ready: IsReady = lambda: True,
    ) -> None:
        """Create an endpoint; `write` adds the service's series, and all get `labels`."""
        self._write = write
        self._labels = labels
        self._is_ready = is_ready
        self._listener: Listener | None = None

    async def listen(self, host: str, port: int) -> str:
        """Serve on an interface or unix:/path, and return the bound address; may raise OSError."""
        self._listener = await listen(self._make_protocol, listening_address(host, port))
        _log.info("serving metrics on %s", self._listener.address)
        return self._listener.address

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()

    def _make_protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=_MAX_REQUEST_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                await load_collectors()
                writer.write(self._response(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            _log.debug("a scrape failed: malformed, too large, too slow or disconnected")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response(b"405 Method Not Allowed\r\nAllow: GET", b"")
        if path == _LIVE_PATH or (path == _READY_PATH and self._is_ready()):
            return _response(b"200 OK", b"")
        if path == _READY_PATH:
            return _response(b"503 Service Unavailable", b"")
        if path.rstrip(b"/") != b"/metrics":
            return _response(b"404 Not Found", b"")
        as_openmetrics = openmetrics.prefers_openmetrics(_accepted(head))
        page = Page(self._labels, exemplars=as_openmetrics)
        try:
            self._write(page)
        except Exception:
            _log.exception("the metrics page could not be written")
            return _response(b"500 Internal Server Error", b"")
        write_process(page)
        if as_openmetrics:
            body = openmetrics.to_openmetrics(page.encode())
            return _response(b"200 OK", body, openmetrics.CONTENT_TYPE)
        return _response(b"200 OK", page.encode())


def _accepted(head: bytes) -> str:
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return ",".join(
        value.decode("latin-1") for name, _, value in fields if name.strip().lower() == b"accept"
    )


def _response(status: bytes, body: bytes, content_type: str = CONTENT_TYPE) -> bytes:
    kind = content_type.encode()
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, kind, len(body)) + body
