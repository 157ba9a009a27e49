"""HTTP/1.1 on one connection: bytes in, whole requests out; answers in, bytes out, in order.

One asyncio.Protocol on httptools' parser. Requests may be pipelined: up to a limit of them are
under way at once, the rest wait, and reading stops while they do or while the client does not take
its answers. An answer in pieces is written as it comes; a client that leaves too much of it is cut
off. A half-closed connection still gets its answers. A closed one looks the same to the kernel
until something is written to it, so an interim 102 is written after a while: a live client skips
it, a dead one's kernel resets the connection, and that cancels what is under way; of an answer in
pieces it is a piece that means nothing. A request whose
head is the last one's, byte by byte, needs no parser (known_head). Knows no routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.services.gateway.http.server.body import Body
from nereid.services.gateway.http.server.call import HttpCall
from nereid.services.gateway.http.server.framing import read_head, without_upgrade
from nereid.services.gateway.http.server.known_head import KnownHead
from nereid.services.gateway.http.server.limits import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.services.gateway.http.server.body import RoomFor
    from nereid.services.gateway.http.server.limits import HttpLimits

    Dispatch = Callable[[HttpCall], None]
    Tell = Callable[["HttpConnection"], None]

_log = logging.getLogger(__name__)

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# Responses up to this are joined: vectors cost more than the copy.
_JOIN_BYTES: Final = 65536


class HttpConnection(asyncio.Protocol):
    """One client's connection. Owns its calls until each is answered or the connection is lost."""

    def __init__(self, dispatch: Dispatch, limits: HttpLimits, made: Tell, gone: Tell) -> None:
        self._dispatch = dispatch
        self._limits = limits
        # Told when there is a transport, which behind a TLS handshake may be never, and none more.
        self._made, self._gone = made, gone
        self.statuses: dict[bytes, int] = defaultdict(int)  # the server's, once it has set it
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        # The request being parsed.
        self._call: HttpCall | None = None
        self._body = Body(limits)
        self.room_for: RoomFor | None = None
        self._header_bytes = 0
        self._in_headers = self._upgrade = False
        # What the request being parsed began with; the last head that was worth remembering.
        self._beginning: bytes | None = None
        self._known: KnownHead | None = None
        # Dispatched and not yet written, in order; parsed and not yet dispatched.
        self._under_way: deque[HttpCall] = deque()
        self._waiting: deque[HttpCall] = deque()
        self._continue_due = self._flushing = False
        self._reading = self._writable = True
        # No further requests; close once the answers are out.
        self._ending = self._eof = False
        # The client is not done sending what was refused; its bytes are being swallowed.
        self._unread = self._lingering = False
        # The server is ending: every answer closes its connection.
        self._last_responses = False
        self._since = self._loop.time()
        self._probe: asyncio.TimerHandle | None = None

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._gone(self)
        self._transport = None
        if self._probe is not None:
            self._probe.cancel()
        calls = [*self._under_way, *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        for call in calls:
            call.cancel()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        if self._call is None:
            data = self._repeats(data)
            self._beginning = data
        elif not self._in_headers:
            self._since = self._loop.time()
        try:
            if self._body.room is not None:
                data = self._fill_room(data)
            self._feed(data)
        except Refused as refused:
            self._refuse(refused.status, refused.message, refused.lines)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, Refused):
                self._refuse(cause.status, cause.message, cause.lines)
            else:
                _log.error("a request could not be taken in", exc_info=cause)
                self._refuse(500, INTERNAL_MESSAGE)
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed HTTP request: {error}")
        self._settle()

    def eof_received(self) -> bool:
        self._eof = self._ending = True
        # A request that was cut off is forgotten; those that arrived get their answers, except over
        # TLS, which knows no half-closed connections.
        if not (self.busy and self._transport and self._transport.can_write_eof()):
            return False
        self._probe = self._loop.call_later(self._limits.probe_delay_s, self._probe_peer)
        return True

    def pause_writing(self) -> None:
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    # --- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._call = HttpCall(self._on_responded)
        self._in_headers = True
        self._body.clear()
        self._since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_headers = False
        call = self._current
        parser = self._parser
        if parser.should_upgrade():
            # The parser skips the body of an upgrade; see _reread.
            self._upgrade = True
            return
        self._continue_due = read_head(call, parser)
        call.keep_alive = call.keep_alive and not self._last_responses
        self._body.announce(call, self.room_for)

    def on_body(self, body: bytes) -> None:
        self._body.add(body)

    def on_chunk_header(self) -> None:
        self._body.begin_chunk()

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        call, self._call = self._current, None
        self._body.hand_over(call)
        self._continue_due = False
        if self._beginning is not None:
            self._known = KnownHead.of(call, self._beginning)
            self._beginning = None
        self._take(call)

    # --- how it works ---------------------------------------------------------------------------

    def _take(self, call: HttpCall) -> None:
        """A request is whole."""
        self._since = self._loop.time()
        if self._ending:
            # Behind the last request that this connection takes; the client may send it again.
            return
        if self._waiting or len(self._under_way) >= self._limits.max_pipelined:
            self._waiting.append(call)
        else:
            self._start(call)
        # The parser stops after a request that closes the connection by itself; this covers those
        # that this side decided to be the last.
        self._ending = self._ending or not call.keep_alive

    def _repeats(self, data: bytes) -> bytes:
        """Take the whole requests with the known head off the front of data."""
        known = self._known
        while known is not None and known.begins(data) and not self._ending:
            call = HttpCall(self._on_responded)
            data = known.take(call, data)
            call.keep_alive = not self._last_responses
            self._take(call)
        return data

    @property
    def _current(self) -> HttpCall:
        if self._call is None:
            raise Refused(400, "malformed HTTP request")
        return self._call

    def _fill_room(self, data: bytes) -> bytes:
        rest = self._body.take(data)
        if self._body.whole:
            # The parser still waits for what it was not shown.
            self._parser = httptools.HttpRequestParser(self)
            self.on_message_complete()
        return rest

    def _feed(self, data: bytes) -> None:
        if self._call is not None and not self._in_headers:
            self._body.expect(len(data))
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._reread() + data[upgrade.args[0] :]
        self._header_bytes = self._header_bytes + len(data) if self._in_headers else 0
        if self._header_bytes > self._limits.max_header_bytes:
            self._refuse(431, f"request headers exceed {self._limits.max_header_bytes} bytes")

    def _reread(self) -> bytes:
        call, method = self._current, self._parser.get_method()
        self._upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        return without_upgrade(call, method)

    def _start(self, call: HttpCall) -> None:
        self._under_way.append(call)
        if call.done:
            return
        try:
            self._dispatch(call)
        except Exception:
            _log.exception("a request failed in the front")
            call.fail(500, INTERNAL_MESSAGE)

    def _refuse(self, status: int, message: str, lines: bytes = b"") -> None:
        """Answer what cannot be read on; the connection ends with that answer."""
        if self._ending:
            return
        call = self._call or HttpCall(self._on_responded)
        self._call = None
        self._in_headers = self._continue_due = False
        self._body.clear()
        self._ending = self._unread = True
        call.keep_alive = False
        (self._waiting or self._under_way).append(call)
        call.fail(status, message, extra=lines)

    def _on_responded(self) -> None:
        """Some call was answered: write what is next in order."""
        under_way, transport = self._under_way, self._transport
        if self._flushing or not under_way or transport is None:
            return
        if not under_way[0].done:
            self._on_piece(transport)
            return
        self._flushing = True
        try:
            while under_way and under_way[0].done:
                call = under_way.popleft()
                self._write(call, transport)
                if not call.keep_alive:
                    self._ending = True
                self._since = self._loop.time()
                while self._waiting and len(under_way) < self._limits.max_pipelined:
                    self._start(self._waiting.popleft())
            if under_way and under_way[0].response:
                self._on_piece(transport)
                under_way[0].set_pace(paused=not self._writable)
        finally:
            self._flushing = False
        self._settle()

    def _on_piece(self, transport: asyncio.Transport) -> None:
        """More of some call's answer is there; only the first call's can be written."""
        head = self._under_way[0]
        if head.response:
            waiting_bytes = transport.get_write_buffer_size()
            self._write(head, transport)
        else:
            waiting_bytes = max(call.waiting_bytes for call in self._under_way)
        if waiting_bytes > self._limits.max_unsent_bytes:
            transport.abort()

    def _set_writable(self, writable: bool) -> None:
        self._writable = writable
        if self._under_way:
            self._under_way[0].set_pace(paused=not writable)
        self._settle()

    def _write(self, call: HttpCall, transport: asyncio.Transport) -> None:
        response, call.response = call.response, []
        if not call.started:
            call.started = True
            self.statuses[response[0][9:12]] += 1  # behind "HTTP/1.1 "
        if sum(map(len, response)) <= _JOIN_BYTES:
            transport.write(b"".join(response))
        else:
            transport.writelines(response)

    def _settle(self) -> None:
        """Whatever follows from the present state: end, read on, stop reading, ask for a body."""
        transport = self._transport
        if transport is None or self._flushing or self._lingering or transport.is_closing():
            return
        if not self._under_way and not self._waiting:
            if self._ending:
                self._end(transport)
                return
            if self._continue_due:
                self._continue_due = False
                transport.write(_CONTINUE)
        wanted = self._writable and len(self._under_way) < self._limits.max_pipelined
        if wanted is not self._reading and not self._eof:
            self._reading = wanted
            if wanted:
                self._since = self._loop.time()
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _end(self, transport: asyncio.Transport) -> None:
        if self._eof or not self._unread:
            transport.close()
            return
        # Closing with unread bytes would reset the connection and take the answer along.
        self._lingering = True
        if transport.can_write_eof():
            transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        self._loop.call_later(self._limits.linger_s, transport.close)

    def _probe_peer(self) -> None:
        """Find out whether the client that sent its FIN is still there for its answer."""
        self._probe = None
        if self._transport is None or not self._under_way:
            return
        self._under_way[0].probe(self._transport.write)
        self._probe = self._loop.call_later(self._limits.probe_interval_s, self._probe_peer)

    # --- for the server -------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether requests are under way."""
        return bool(self._under_way or self._waiting)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0

    def sweep(self, now: float) -> None:
        """Close the connection when its client has been silent for too long."""
        quiet_s = now - self._since
        if self.busy or not self._reading or self._transport is None:
            # At work, or not read from: then it is the server who judges whether it takes anything.
            return
        if self._ending or self._call is None:
            if quiet_s > self._limits.idle_timeout_s:
                # Not close: it would wait for a client that does not take its answers.
                self._transport.abort()
        elif quiet_s > self._limits.silence_s(in_headers=self._in_headers):
            self._refuse(408, "the request did not arrive in time")

    def say_goodbye(self) -> None:
        """The next answer that can tell it tells the client to close."""
        self._last_responses = True
        for calls in (self._waiting, self._under_way):
            if calls and not calls[-1].done:
                calls[-1].keep_alive = False
                self._ending = True
                return

    def end(self) -> None:
        """Take no further request; close once what is under way is answered."""
        self._ending = True
        self._settle()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
