"""Clients' connections over HTTP/1.1: each has connections of its own to both servers."""

from __future__ import annotations

import asyncio
import socket
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

import httptools

from nereid.rpc.writes.direct_writes import descriptor_of, write_at_once
from nereid_adopt.calls.kinds import CallKind, http_call
from nereid_adopt.calls.requests import decoded, http_facts
from nereid_adopt.calls.traffic import Side
from nereid_adopt.proxy.held_bytes import Holder
from nereid_adopt.proxy.http_requests import HeadTooLargeError, RequestReader
from nereid_adopt.proxy.http_server import (
    CutOffError,
    HttpExchange,
    HttpServerConnection,
    NoResponseError,
)
from nereid_adopt.proxy.recorder import NO_REGION, CopiedCall, HttpReply, pieces_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nereid_adopt.calls.kinds import HttpCall
    from nereid_adopt.calls.requests import RequestFacts
    from nereid_adopt.calls.traffic import SequenceStep
    from nereid_adopt.proxy.http_requests import HttpRequest
    from nereid_adopt.proxy.site import Site

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNAVAILABLE: Final = 503
_OK: Final = 200
# Requests of a client that sends them without waiting for responses.
_MAX_PIPELINED: Final = 16
_BAD_GATEWAY: Final = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpClientConnection(asyncio.Protocol):
    """Connection of one client. It gets its responses one after the other."""

    _transport: asyncio.Transport

    def __init__(self, site: Site) -> None:
        self._site = site
        self._servers = tuple(
            HttpServerConnection(*pair)
            for pair in zip(site.http_addresses, site.http_tls, strict=True)
        )
        self._reader = RequestReader(site.max_copied_bytes, site.held_bytes, self._on_request)
        self._requests: asyncio.Queue[HttpRequest | None] = asyncio.Queue()
        self._descriptor = -1
        self._task: asyncio.Task[None] | None = None
        # Bytes of the request whose head is not complete, in case it turns out to be malformed.
        self._unparsed: list[bytes] = []
        self._tunnel: asyncio.Transport | None = None
        self._failed = False
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._descriptor = descriptor_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._site.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Parse requests."""
        if self._tunnel is not None:
            self._tunnel.write(data)
            return
        if self._failed:
            self._unparsed.append(data)
            return
        self._unparsed.append(data)
        try:
            self._reader.feed(data)
        except (httptools.HttpParserError, HeadTooLargeError):
            self._failed = True
            self._requests.put_nowait(None)
            return
        request = self._reader.request
        if request is None or request.method:
            self._unparsed.clear()
        if request is not None and request.expects_continue and request.method:
            request.expects_continue = False
            # Not while an earlier response may be on its way.
            if self._requests.empty():
                self.write(_CONTINUE)
        if self._is_full():
            self._transport.pause_reading()
            self._is_paused = True

    def eof_received(self) -> bool:
        """Return whether the connection stays half-closed: it does while a request is served."""
        request = self._reader.request
        if request is not None and request.arriving is not None:
            # The server waits for the rest of its body.
            self._transport.abort()
            return False
        # Further requests keep their server's connection open.
        if self._requests.empty():
            for server in self._servers:
                server.end_output()
        self._requests.put_nowait(None)
        # TLS has no half-closed connections.
        return self._descriptor >= 0

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel the request in flight."""
        self._site.connections.discard(self)
        while not self._requests.empty():
            self._requests.get_nowait()
        if self._reader.request is not None:
            self._reader.request.held.release()
        if self._task is not None:
            self._task.cancel()
        for server in self._servers:
            server.close()

    def pause_writing(self) -> None:
        """Read no more of the response, because the client does not read it."""
        for server in self._servers:
            server.set_paused(True)

    def resume_writing(self) -> None:
        """Continue to read the response."""
        for server in self._servers:
            server.set_paused(False)

    def write(self, data: bytes) -> None:
        """Write a part of a response."""
        write_at_once(self._transport, self._descriptor, data)

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _on_request(self, request: HttpRequest) -> None:
        self._requests.put_nowait(request)

    def _is_full(self) -> bool:
        request = self._reader.request
        arriving = 0 if request is None or request.arriving is None else request.arriving.qsize()
        # Without space, each connection holds one piece.
        most = 1 if self._site.held_bytes.is_full else _MAX_PIPELINED
        return self._requests.qsize() >= _MAX_PIPELINED or arriving >= most

    def _resume_reading(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    async def _serve(self) -> None:
        while (request := await self._requests.get()) is not None:
            self._resume_reading()
            try:
                keep = await self._respond(request)
            except (NoResponseError, CutOffError) as error:
                # Nobody reads the rest of a large request.
                keep = self._fail(error) and request.arriving is None
            request.held.release()
            if not keep:
                break
        else:
            if self._failed:
                await self._pass_on_malformed()
        self._transport.close()

    def _fail(self, error: Exception) -> bool:
        """Respond if nothing has been sent; return whether the connection may go on."""
        self._site.recorder.failures += 1
        if isinstance(error, CutOffError):
            self._transport.abort()
            return False
        text = b'{"error":"%s"}' % str(error).encode("ascii", "replace").replace(b'"', b"'")
        self.write(_BAD_GATEWAY % (len(text), text))
        return True

    async def _pass_on_malformed(self) -> None:
        """Let the old server refuse a request that cannot be parsed, in its own words."""
        data = b"".join(self._unparsed)
        server = self._servers[self._site.traffic.side_of_other_calls()]
        try:
            self._tunnel = await server.open_tunnel(data, self._transport.write)
        except NoResponseError:
            self.write(_BAD_REQUEST)
            return
        await server.wait_closed()

    async def _respond(self, request: HttpRequest) -> bool:
        site = self._site
        call = http_call(request.method, request.target)
        if request.arriving is not None:
            return await self._respond_large(request, call)
        if call.kind is CallKind.INFER:
            return await self._infer(request, call)
        if call.kind is CallKind.CHANGE:
            return await self._change(request)
        side = site.traffic.side_of_other_calls()
        if call.kind is CallKind.EVENTS:
            step = _facts(request, call.model).step
            side = site.traffic.side_of_request(step)
            site.recorder.skip(call.model, "its responses are events", step)
            _, exchange = await self._first_response(request, side, step)
        else:
            _, exchange = await self._first_response(request, side)
        return _keeps(request, exchange)

    async def _first_response(
        self,
        request: HttpRequest,
        side: Side,
        step: SequenceStep | None = None,
        before_data: Callable[[], None] | None = None,
    ) -> tuple[Side, HttpExchange]:
        """Pass on one side's response, and the old one's if the new one sends none."""
        recorder = self._site.recorder
        if side is Side.NEW:
            exchange = self._exchange(request)
            exchange.before_data = before_data
            exchange.refuses = _is_unavailable
            try:
                await self._servers[side].exchange(exchange)
            except NoResponseError:
                exchange.refused = True
            if not exchange.refused:
                recorder.responses[side] += 1
                return side, exchange
            recorder.failovers += 1
            if step is not None:
                # The old server has the sequence's earlier requests, as copies.
                self._site.traffic.note_step(step, Side.OLD)
        exchange = self._exchange(request)
        exchange.before_data = before_data
        await self._servers[Side.OLD].exchange(exchange)
        recorder.responses[Side.OLD] += 1
        return Side.OLD, exchange

    def _exchange(self, request: HttpRequest) -> HttpExchange:
        parts = [request.head(), *map(request.encode_piece, request.pieces), request.end()]
        return HttpExchange(
            parts,
            request.method == "HEAD",
            on_data=self.write,
            max_body_bytes=self._site.max_copied_bytes,
            held=Holder(self._site.held_bytes),
        )

    async def _respond_large(self, request: HttpRequest, call: HttpCall) -> bool:
        """Pass on a request whose body is not kept; it has no copy."""
        side = self._site.traffic.side_of_other_calls()
        if call.model:
            # JSON that has not arrived as a whole says nothing.
            facts = _facts(request, call.model)
            if facts.step is not None:
                side = self._site.side_of_request(facts)
            self._site.recorder.skip(call.model, request.why_not_kept, facts.step)
        exchange = HttpExchange(
            [request.head(), *(request.encode_piece(piece) for piece in request.pieces)],
            rest=self._pieces(request),
            on_data=self.write,
            max_body_bytes=0,
        )
        request.pieces.clear()
        await self._servers[side].exchange(exchange)
        self._site.recorder.responses[side] += 1
        return _keeps(request, exchange)

    async def _pieces(self, request: HttpRequest) -> AsyncIterator[bytes]:
        assert request.arriving is not None
        while (piece := await request.arriving.get()) is not None:
            self._resume_reading()
            yield request.encode_piece(piece)
        yield request.end()

    async def _infer(self, request: HttpRequest, call: HttpCall) -> bool:
        site = self._site
        facts = _facts(request, call.model)
        inputs = site.regions.read(facts.input_ranges) if facts.input_ranges else {}
        outputs: dict[str, bytes] | None = {}

        def read_outputs() -> None:
            # The client may change its regions as soon as it has the response.
            nonlocal outputs
            outputs = site.regions.read(facts.output_ranges)

        begin = perf_counter()
        side, exchange = await self._first_response(
            request,
            site.side_of_request(facts),
            facts.step,
            read_outputs if facts.output_ranges else None,
        )
        latency_s = perf_counter() - begin
        recorder, parser, body = site.recorder, exchange.parser, exchange.body
        if not recorder.may_copy(call.model, facts):
            return _keeps(request, exchange)
        if body is None:
            recorder.skip(call.model, exchange.why_not_kept, facts.step)
        elif inputs is None or outputs is None:
            recorder.skip(call.model, NO_REGION, facts.step)
        else:
            recorder.submit(
                CopiedCall(
                    model=call.model,
                    side=side,
                    path=request.target.decode("latin-1"),
                    headers=tuple(request.headers),
                    request=pieces_of(request.pieces),
                    reply=HttpReply(
                        parser.status, pieces_of(body), parser.json_bytes, parser.content_encoding
                    ),
                    latency_s=latency_s,
                    step=facts.step,
                    json_bytes=request.json_bytes,
                    encoding=request.encoding,
                    inputs=inputs,
                    outputs=outputs,
                ),
                request.body_bytes + exchange.body_bytes,
            )
        return _keeps(request, exchange)

    async def _change(self, request: HttpRequest) -> bool:
        """Have both servers make a change. The one that responds to other calls makes it last."""
        site = self._site
        await site.recorder.drain()
        side = site.traffic.side_of_other_calls()
        other = self._exchange(request)
        other.on_data = None
        try:
            async with asyncio.timeout(site.max_change_s):
                await self._servers[side.other].exchange(other)
            status = other.parser.status
        except (NoResponseError, CutOffError, TimeoutError):
            status = 0
        exchange = self._exchange(request)
        await self._servers[side].exchange(exchange)
        site.recorder.responses[side] += 1
        if exchange.parser.status == _OK:
            sides = {side, side.other} if status == _OK else {side}
            site.regions.on_http_change(request.target, request.body, frozenset(sides))
        site.recorder.note_change(
            f"{request.method} {request.target.decode('latin-1')}",
            ok=(exchange.parser.status == _OK) is (status == _OK),
        )
        return _keeps(request, exchange)


def _facts(request: HttpRequest, model: str) -> RequestFacts:
    body = decoded(request.json_text, request.encoding)
    return http_facts(model, body or b"", request.json_bytes)


def _is_unavailable(status: int) -> bool:
    return status == _UNAVAILABLE


def _keeps(request: HttpRequest, exchange: HttpExchange) -> bool:
    parser = exchange.parser
    # Without a length, the body ends with the connection.
    return request.keep_alive and exchange.is_http and parser.keeps_alive
