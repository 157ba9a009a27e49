"""Clients' connections over HTTP/1.1: each has connections of its own to both servers."""

# layout: compiled

from __future__ import annotations

import asyncio
import socket
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once
from nereid_adopt.calls.kinds import CallKind
from nereid_adopt.calls.requests import NO_FACTS, decoded, http_facts
from nereid_adopt.calls.traffic import Side
from nereid_adopt.proxy.held_bytes import Holder
from nereid_adopt.proxy.http_requests import HeadTooLargeError, RequestReader
from nereid_adopt.proxy.http_responses import ResponseReader
from nereid_adopt.proxy.http_server import (
    CutOffError,
    ExchangeOwner,
    HttpExchange,
    HttpServerConnection,
    NoResponseError,
)
from nereid_adopt.proxy.recorder import NO_REGION, CopiedCall, HttpReply, pieces_of

if TYPE_CHECKING:
    from nereid_adopt.calls.requests import RequestFacts
    from nereid_adopt.proxy.http_requests import HttpRequest
    from nereid_adopt.proxy.site import Site

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNAVAILABLE: Final = 503
_OK: Final = 200
# Requests of a client that sends them without waiting for responses, and pieces of a large one.
_MAX_PIPELINED: Final = 16
_BAD_GATEWAY: Final = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpClientConnection:
    """Connection of one client. It gets its responses one after the other.

    It does not extend asyncio.Protocol: a compiled class may extend compiled classes only.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.servers = tuple(
            HttpServerConnection(address, site.http_heads, tls)
            for address, tls in zip(site.http_addresses, site.http_tls, strict=True)
        )
        self._reader = RequestReader(
            site.max_copied_bytes, site.held_bytes, site.request_heads, self._on_request
        )
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        # Requests that have arrived behind the one that is served.
        self._waiting: deque[HttpRequest] = deque()
        self._is_busy = False
        # True if the client sends no more, or something that cannot be parsed.
        self._has_ended = self._has_failed = False
        self._task: asyncio.Task[None] | None = None
        self._tunnel: asyncio.Transport | None = None
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = descriptor_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.site.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse requests."""
        if self._tunnel is not None:
            self._tunnel.write(data)
            return
        reader = self._reader
        try:
            reader.feed(data)
        except (httptools.HttpParserError, HeadTooLargeError):
            self._has_failed = True
            self._pause_reading()
            self._serve_next()
            return
        request = reader.request
        if request is not None and request.expects_continue and reader.has_head:
            request.expects_continue = False
            # Not while an earlier response may be on its way.
            if not self._waiting:
                self.write(_CONTINUE)
        if self._is_full():
            self._pause_reading()

    def eof_received(self) -> bool:
        """Return whether the connection stays half-closed: it does while a request is served."""
        request = self._reader.request
        if request is not None and request.arriving is not None:
            # The server waits for the rest of its body.
            self.abort()
            return False
        # Further requests keep their server's connection open.
        if not self._waiting:
            for server in self.servers:
                server.end_output()
        self._has_ended = True
        self._serve_next()
        # TLS has no half-closed connections.
        return self._descriptor >= 0

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel the request in flight."""
        self.site.connections.discard(self)
        self._transport = None
        self._waiting.clear()
        if self._reader.request is not None:
            self._reader.request.held.release()
        if self._task is not None:
            self._task.cancel()
        for server in self.servers:
            server.close()

    def pause_writing(self) -> None:
        """Read no more of the response, because the client does not read it."""
        for server in self.servers:
            server.set_paused(True)

    def resume_writing(self) -> None:
        """Continue to read the response."""
        for server in self.servers:
            server.set_paused(False)

    def write(self, data: bytes) -> None:
        """Write a part of a response."""
        if self._transport is not None:
            write_at_once(self._transport, self._descriptor, data)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def on_served(self, *, keep: bool) -> None:
        """Serve the next request, or close the connection."""
        self._is_busy = False
        if keep:
            self._serve_next()
        elif self._transport is not None:
            self._transport.close()

    def fail(self, error: Exception) -> bool:
        """Respond if nothing has been sent; return whether the connection may go on."""
        self.site.recorder.failures += 1
        if isinstance(error, CutOffError):
            self.abort()
            return False
        text = b'{"error":"%s"}' % str(error).encode("ascii", "replace").replace(b'"', b"'")
        self.write(_BAD_GATEWAY % (len(text), text))
        return True

    def _on_request(self, request: HttpRequest) -> None:
        self._waiting.append(request)
        if not self._is_busy:
            self._serve_next()

    def _serve_next(self) -> None:
        transport = self._transport
        if self._is_busy or transport is None or transport.is_closing():
            return
        if self._waiting:
            self._is_busy = True
            request = self._waiting.popleft()
            self._resume_reading()
            if request.arriving is not None or request.head.call.kind is CallKind.CHANGE:
                self.spawn(self._pass_on(request))
            else:
                _PassedRequest(self, request).start()
        elif self._has_failed:
            self._is_busy = True
            self.spawn(self._pass_on_malformed(transport))
        elif self._has_ended:
            transport.close()

    def _is_full(self) -> bool:
        if len(self._waiting) >= _MAX_PIPELINED:
            return True
        request = self._reader.request
        arriving = None if request is None else request.arriving
        if arriving is None:
            return False
        # Without space, each connection holds one piece.
        return arriving.qsize() >= (1 if self.site.held_bytes.is_full else _MAX_PIPELINED)

    def _pause_reading(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused and not self._has_failed and self._transport is not None:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def spawn(self, work: Any) -> None:
        """Run a coroutine that serves the current request, until the client disconnects."""
        self._task = asyncio.get_running_loop().create_task(work)

    async def _pass_on_malformed(self, transport: asyncio.Transport) -> None:
        """Let the old server refuse a request that cannot be parsed, in its own words."""
        data = self._reader.malformed
        server = self.servers[self.site.traffic.side_of_other_calls()]
        try:
            if not data:
                raise NoResponseError
            self._tunnel = await server.open_tunnel(data, transport.write)
        except NoResponseError:
            self.write(_BAD_REQUEST)
        else:
            if not transport.is_closing():
                transport.resume_reading()
            await server.wait_closed()
        self.on_served(keep=False)

    async def _pass_on(self, request: HttpRequest) -> None:
        try:
            if request.arriving is not None:
                await self._pass_on_large(request)
            else:
                await self._change(request)
        finally:
            # Not with the last reference: the traceback of an exception may have it for long.
            request.held.release()

    async def _pass_on_large(self, request: HttpRequest) -> None:
        """Pass on a request whose body is not kept; it has no copy."""
        site, model = self.site, request.head.call.model
        side = site.traffic.side_of_other_calls()
        if model:
            # JSON that has not arrived as a whole says nothing.
            facts = _facts(request)
            planned, is_copied = site.plan(facts)
            if facts.step is not None:
                side = planned
            if is_copied:
                site.recorder.skip(model, request.why_not_kept, facts.step)
        parts = request.parts()
        request.pieces.clear()
        try:
            response = await self.servers[side].request(
                parts,
                on_data=self.write,
                max_body_bytes=0,
                rest=request,
                on_piece=self._resume_reading,
            )
        except (NoResponseError, CutOffError) as error:
            self.fail(error)
            # Nobody reads the rest of the request.
            self.on_served(keep=False)
            return
        site.recorder.responses[side] += 1
        # Nobody reads the rest of a request that has its response already.
        has_arrived = self._reader.request is not request
        self.on_served(keep=has_arrived and _keeps(request, response))

    async def _change(self, request: HttpRequest) -> None:
        """Have both servers make a change. The one that responds to other calls makes it last."""
        site, head, parts = self.site, request.head, request.parts()
        await site.recorder.drain()
        side = site.traffic.side_of_other_calls()
        try:
            async with asyncio.timeout(site.max_change_s):
                status = (await self.servers[side.other].request(parts)).status
        except (NoResponseError, CutOffError, TimeoutError):
            status = 0
        try:
            response = await self.servers[side].request(parts, on_data=self.write)
        except (NoResponseError, CutOffError) as error:
            self.on_served(keep=self.fail(error))
            return
        site.recorder.responses[side] += 1
        if response.status == _OK:
            sides = {side, side.other} if status == _OK else {side}
            site.regions.on_http_change(head.target, request.body, frozenset(sides))
        site.recorder.note_change(
            f"{head.method} {head.path}", ok=(response.status == _OK) is (status == _OK)
        )
        self.on_served(keep=_keeps(request, response))


class _PassedRequest(ExchangeOwner):
    """A request that one server responds to: the old one as well, if the new one sends nothing."""

    def __init__(self, client: HttpClientConnection, request: HttpRequest) -> None:
        self._client = client
        self._request = request
        self._side = Side.OLD
        self._is_refused = False
        self._facts = NO_FACTS
        self._is_copied = False
        self._response: ResponseReader | None = None
        # The attributes of an inference follow.
        self._begin = self._latency_s = 0.0
        self._inputs: dict[str, bytes] | None = {}
        self._outputs: dict[str, bytes] | None = {}

    def start(self) -> None:
        """Choose the server, and send it the request."""
        site, call = self._client.site, self._request.head.call
        if call.kind is CallKind.OTHER:
            self._attempt(site.traffic.side_of_other_calls())
            return
        self._facts = facts = _facts(self._request)
        side, is_copied = site.plan(facts)
        if call.kind is CallKind.EVENTS:
            if is_copied:
                site.recorder.skip(call.model, "its responses are events", facts.step)
            self._attempt(side)
            return
        self._is_copied = is_copied
        if self._is_copied and facts.input_ranges:
            self._inputs = site.regions.read(facts.input_ranges)
        self._begin = perf_counter()
        self._attempt(side)

    @property
    def takes_interim(self) -> bool:
        """True for the old server: the new one may turn out to be unavailable."""
        return self._side is Side.OLD

    def on_response(self, response: ResponseReader) -> bool:
        """Refuse a new server that is unavailable."""
        site = self._client.site
        if (
            self._side is Side.NEW
            and response.status == _UNAVAILABLE
            and site.may_fail_over(self._facts.step)
        ):
            self._is_refused = True
            return False
        if self._is_copied and self._facts.output_ranges:
            # The client may change its regions as soon as it has the response.
            self._outputs = site.regions.read(self._facts.output_ranges)
        return True

    def on_data(self, data: bytes) -> None:
        """Pass on a part of the response."""
        self._client.write(data)

    def on_done(self, response: ResponseReader, error: Exception | None) -> None:
        """End the request, or send it to the old server."""
        client, request = self._client, self._request
        recorder = client.site.recorder
        if self._side is Side.NEW and (self._is_refused or isinstance(error, NoResponseError)):
            self._is_refused = False
            client.spawn(self._fail_over(error))
            return
        if error is not None:
            client.on_served(keep=client.fail(error))
            return
        recorder.responses[self._side] += 1
        if self._is_copied:
            self._latency_s = perf_counter() - self._begin
            self._response = response
            recorder.record_later(self._record)
        client.on_served(keep=_keeps(request, response))

    async def _fail_over(self, error: Exception | None) -> None:
        client = self._client
        if await client.site.fail_over(self._facts.step):
            self._attempt(Side.OLD)
        else:
            client.on_served(keep=client.fail(error or NoResponseError("unavailable")))

    def _attempt(self, side: Side) -> None:
        self._side = side
        client, request = self._client, self._request
        server = client.servers[side]
        response = ResponseReader(
            server.heads,
            is_head=request.head.method == "HEAD",
            max_body_bytes=client.site.max_copied_bytes if self._is_copied else 0,
            held=Holder(client.site.held_bytes),
        )
        server.send(HttpExchange(request.parts(), response, self))

    def _record(self) -> None:
        head, request, response = self._request.head, self._request, self._response
        recorder, facts, model = self._client.site.recorder, self._facts, head.call.model
        assert response is not None
        if not recorder.may_copy(model, facts):
            return
        body = response.body
        if body is None:
            recorder.skip(model, response.why_not_kept, facts.step)
            return
        if self._inputs is None or self._outputs is None:
            recorder.skip(model, NO_REGION, facts.step)
            return
        recorder.submit(
            CopiedCall(
                model=model,
                side=self._side,
                path=head.path,
                headers=head.headers,
                request=pieces_of(request.pieces),
                reply=HttpReply(
                    response.status, pieces_of(body), response.json_bytes, response.encoding
                ),
                latency_s=self._latency_s,
                step=facts.step,
                json_bytes=head.json_bytes,
                encoding=head.encoding,
                inputs=self._inputs,
                outputs=self._outputs,
            ),
            request.body_bytes + response.body_bytes,
        )


def _facts(request: HttpRequest) -> RequestFacts:
    head = request.head
    text = decoded(request.json_text, head.encoding)
    return http_facts(head.call.model, text or b"", head.json_bytes)


def _keeps(request: HttpRequest, response: ResponseReader) -> bool:
    # Without a length, the body ends with the connection.
    return request.head.keep_alive and response.is_http and response.keeps_alive
