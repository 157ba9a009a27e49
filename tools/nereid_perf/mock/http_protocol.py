"""HTTP/1.1 of the mock server: only what an inference client needs from a server."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once
from nereid_perf.mock.model import EXTENSIONS, FAILURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_perf.mock.model import MockModel

    # Serves a request. It gets a callback for the end, which takes True for a failure.
    Serve = Callable[[Callable[[bool], None]], None]

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PATH: Final = re.compile(
    rb"[A-Z]+ /v2(?:/models/(?P<model>[^/ ]+)(?:/versions/[^/ ]+)?)?(?P<rest>/[a-z][^ ?]*)? "
)
# perf_analyzer matches responses to requests by id.
_ID: Final = re.compile(rb'"id" *: *"([^"\\]*)"')
_LAST_ID_PLACE: Final = 1 << 10
_SHARED_MEMORY: Final = "/systemsharedmemory"
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEADS: Final = 64


class HttpProtocol(asyncio.Protocol):
    """One connection; pipelined requests wait in the buffer until earlier responses are sent."""

    def __init__(self, model: MockModel, serve: Serve, connections: set[HttpProtocol]) -> None:
        """Prepare a connection, which is in `connections` while it is open."""
        self._connections = connections
        self._model = model
        self._serve = serve
        self._response = model.http_response()
        self._buffer = b""
        self._busy = False
        self._request_id = ""
        # Method, target and body length of each parsed head.
        self._heads: dict[bytes, tuple[str, str, int]] = {}
        self._transport: asyncio.Transport
        self._descriptor = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and add this connection to the open connections."""
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = descriptor_of(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the client's business)
        """Remove this connection from the open connections."""
        self._connections.discard(self)

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Buffer the data, and serve the requests in it."""
        self._buffer = self._buffer + data if self._buffer else data
        self._serve_next()

    def _serve_next(self) -> None:
        while not self._busy:
            head, end, _ = self._buffer.partition(_HEAD_END)
            if not end:
                return
            model, what, length = self._heads.get(head) or self._read_head(head)
            size = len(head) + len(end) + length
            if len(self._buffer) < size:
                return
            body_at = size - length
            request_id = _ID.search(self._buffer, body_at, min(size, body_at + _LAST_ID_PLACE))
            self._buffer = self._buffer[size:]
            if what == "/infer":
                self._busy = True
                self._request_id = request_id[1].decode() if request_id else ""
                self._serve(self._respond)
            else:
                self._write(_document(self._model, model, what))

    def _read_head(self, head: bytes) -> tuple[str, str, int]:
        path = _PATH.match(head)
        model = what = "unknown"
        if path is not None:
            model = (path["model"] or b"").decode()
            what = (path["rest"] or b"").decode()
        length = _LENGTH.search(head)
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        request = self._heads[head] = (model, what, int(length[1]) if length else 0)
        return request

    def _respond(self, fails: bool) -> None:
        self._busy = False
        if fails:
            self._write(_http(500, {"error": FAILURE}))
        else:
            named = self._request_id
            self._write(self._model.http_response(named) if named else self._response)
        self._serve_next()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            write_at_once(self._transport, self._descriptor, data)


def _document(model: MockModel, name: str, what: str) -> bytes:
    documents: dict[tuple[bool, str], Any] = {
        (False, ""): {"name": "mock", "version": "1", "extensions": EXTENSIONS},
        (False, "/health/live"): {},
        (False, "/health/ready"): {},
        (True, ""): model.metadata(name),
        (True, "/ready"): {},
        (True, "/config"): model.config(name),
        (True, "/stats"): {"model_stats": [model.statistics(name)]},
    }
    if not name and what.startswith(_SHARED_MEMORY):
        # The mock neither reads nor writes tensors.
        return _http(200, [] if what.endswith("/status") else {})
    document = documents.get((bool(name), what))
    if document is None:
        return _http(404, {"error": "the mock server has no such path"})
    return _http(200, document)


def _http(status: int, document: Any) -> bytes:
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
