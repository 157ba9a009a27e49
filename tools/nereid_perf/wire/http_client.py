"""The client for HTTP/1.1: each connection has one request in flight and stays open."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from nereid.core.files.json_document import parse_document
from nereid.rpc.net.tls_files import reason
from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once
from nereid_perf.wire.client import PendingRequest
from nereid_perf.wire.dials import Dials
from nereid_perf.wire.http_requests import HttpRequests
from nereid_perf.wire.kept_bytes import KeptBytes
from nereid_perf.wire.response_head import PlainHeads, ResponseParser
from nereid_perf.wire.text_responses import TextEvents, error_text, read_usage

if TYPE_CHECKING:
    from nereid.rpc.net.dialing import Dialer
    from nereid.rpc.net.tls_files import Tls
    from nereid_perf.plan import Plan
    from nereid_perf.request import Request
    from nereid_perf.wire.client import OnEnd

_HEAD_END: Final = b"\r\n\r\n"
_OK: Final = 200
_MAX_ERROR_LENGTH: Final = 200


class HttpClient:
    """A client that uses an idle connection for a request, or dials another connection."""

    def __init__(self, plan: Plan, on_end: OnEnd) -> None:
        self.on_end = on_end
        self.wire_bytes = KeptBytes(HttpRequests(plan).wire_bytes).bytes_of
        self.heads = PlainHeads()
        self._idle: list[_HttpConnection] = []
        self._open: set[_HttpConnection] = set()
        self._dials = Dials(plan, on_end, self._connect)
        self._all_lost = asyncio.Event()
        self.keeps_messages = plan.checks_responses
        self.reads_usage = bool(plan.path)
        # With checks, timings or usage, responses differ and are read.
        self.reads_heads = plan.checks_responses or plan.server_timing or self.reads_usage

    async def open(self, in_flight: int) -> None:
        """Open connections for this number of requests in flight. May raise OSError."""
        missing = in_flight - len(self._open)
        await asyncio.gather(*(self._dials.dial() for _ in range(missing)))
        if len(self._open) < in_flight:
            raise OSError(self._dials.error)

    def send(self, request: Request, intended_ns: int) -> PendingRequest:
        """Send a request at once, or as soon as a connection is free."""
        pending = PendingRequest(request, intended_ns)
        if self._idle:
            self._idle.pop().send(pending)
        else:
            self._dials.queue.append(pending)
            self._dials.dial_for_queue()
        return pending

    def flush(self) -> None:
        """Do nothing: send() writes everything at once."""

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request; if it has been sent, close its connection."""
        connection = pending.carrier
        if connection is None:
            self._dials.queue.remove(pending)
        elif connection.pending is pending:
            # HTTP/1.1 has no other way to cancel a request.
            connection.abandon()

    async def close(self) -> None:
        """Close all connections."""
        await self._dials.close()
        for connection in tuple(self._open):
            connection.abandon()
        if self._open:
            await self._all_lost.wait()

    def on_free(self, connection: _HttpConnection) -> None:
        """Use a free connection for a waiting request, or keep it as idle."""
        if self._dials.queue:
            connection.send(self._dials.queue.popleft())
        else:
            self._idle.append(connection)

    def on_connected(self, connection: _HttpConnection) -> None:
        """Keep a new connection."""
        self._open.add(connection)
        self.on_free(connection)

    def on_lost(self, connection: _HttpConnection) -> None:
        """Forget a connection that is lost."""
        self._open.discard(connection)
        if self._dials.closed and not self._open:
            self._all_lost.set()
        if connection in self._idle:
            self._idle.remove(connection)
        self._dials.dial_for_queue()

    async def _connect(self, dialer: Dialer, tls: Tls | None) -> None:
        await dialer.connect(self._new_connection, tls)

    def _new_connection(self) -> _HttpConnection:
        return _HttpConnection(self)


class _HttpConnection(asyncio.Protocol):
    """A connection; `pending` is its request in flight, or `None` while it is idle."""

    def __init__(self, client: HttpClient) -> None:
        self.pending: PendingRequest | None = None
        self._client = client
        self._wire_bytes = client.wire_bytes
        self._content_length = client.heads.content_length
        self._keeps = client.keeps_messages
        self._reads_heads = client.reads_heads
        # Number of bytes still to come of a body that is not used.
        self._missing = 0
        # For a response that PlainHeads does not know, or whose head came in pieces.
        self._parser: ResponseParser | None = None
        self._events: TextEvents | None = None
        self._transport: asyncio.Transport
        self._descriptor = -1

    def send(self, pending: PendingRequest) -> None:
        self.pending = pending
        pending.carrier = self
        data = self._wire_bytes(pending.request)
        pending.sent_ns = monotonic_ns()
        write_at_once(self._transport, self._descriptor, data)

    def abandon(self) -> None:
        """Close the connection without reporting the end of its request."""
        self.pending = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = descriptor_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client.on_connected(self)

    def data_received(self, data: bytes) -> None:
        now = monotonic_ns()
        pending = self.pending
        if pending is None:
            # No request is in flight, so these bytes are no response.
            self._transport.abort()
            return
        if self._missing:
            self._missing -= len(data)
            if self._missing <= 0:
                self._end(pending, now)
            return
        if self._parser is None:
            pending.first_ns = now
            end = data.find(_HEAD_END) + 4
            length = self._content_length(data[:end]) if end > 3 and not self._reads_heads else -1
            if length >= 0:
                missing = end + length - len(data)
                if missing <= 0:
                    self._end(pending, now)
                else:
                    self._missing = missing
                return
            self._parser = ResponseParser()
        self._parse(self._parser, pending, data, now)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        pending, self.pending = self.pending, None
        self._client.on_lost(self)
        if pending is not None:
            pending.last_ns = monotonic_ns()
            why = "" if exc is None else f": {reason(exc)}"
            self._client.on_end(pending, f"connection lost{why}")

    def _end(self, pending: PendingRequest, now: int) -> None:
        """End a request whose response is complete and of the kind that PlainHeads knows."""
        self._missing = 0
        pending.last_ns = now
        pending.responses = 1
        self.pending = None
        client = self._client
        client.on_free(self)
        client.on_end(pending, "")

    def _parse(
        self, parser: ResponseParser, pending: PendingRequest, data: bytes, now: int
    ) -> None:
        try:
            parser.feed(data)
        except httptools.HttpParserError as error:
            self.abandon()
            pending.last_ns = now
            self._client.on_end(pending, f"not HTTP: {error}")
            return
        if parser.is_stream and parser.status == _OK:
            self._read_events(parser, pending, now)
        if not parser.complete:
            return
        failure = self._failure(parser, pending)
        self._parser = self._events = None
        self.pending = None
        pending.last_ns = now
        pending.responses = max(1, pending.responses)
        pending.server_timing = parser.server_timing
        if self._keeps:
            pending.message, pending.json_bytes = b"".join(parser.body), parser.json_bytes
        if parser.keeps_alive:
            self._client.on_free(self)
        else:
            self._transport.close()
        self._client.on_end(pending, failure)

    def _read_events(self, parser: ResponseParser, pending: PendingRequest, now: int) -> None:
        if self._events is None:
            self._events = TextEvents()
        content = b"".join(parser.body)
        parser.body.clear()
        self._events.feed(pending, content, now)

    def _failure(self, parser: ResponseParser, pending: PendingRequest) -> str:
        """Return why a complete response is an error, or ""; note its usage."""
        if parser.status != _OK:
            return _error_of(parser)
        if self._events is not None:
            return self._events.error
        if self._client.reads_usage:
            read_usage(pending, b"".join(parser.body))
        return ""


def _error_of(parser: ResponseParser) -> str:
    body = b"".join(parser.body)
    try:
        document: Any = parse_document(body)
        text = error_text(document["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return f"HTTP {parser.status}: {text[:_MAX_ERROR_LENGTH]}"
