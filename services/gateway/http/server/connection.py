"""One HTTP/1.1 connection: bytes in, complete requests out; responses in, bytes out, in order.

An asyncio.Protocol on httptools' parser.

- Requests may be pipelined: up to `max_pipelined` of them are in flight, further ones are queued.
  Reading pauses while they are, and while the client does not read its responses.
- A streamed response is written as it comes; a client that leaves too much of it unread is
  disconnected.
- A half-closed connection still gets its responses. A fully closed one looks the same to the kernel
  until something is written to it, so the client is probed: by an interim 102, or within a stream
  by a chunk without meaning. A live client ignores it; the kernel of a dead one resets the
  connection, which cancels what is in flight.
- A request whose head repeats the previous one byte by byte needs no parser (known_head).

Knows no routes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.rpc.net.address import client_of, text_of
from nereid.rpc.net.budget import OverBudgetError
from nereid.rpc.net.stall_detection import UploadWatch
from nereid.services.gateway.http.server.body import RequestBody
from nereid.services.gateway.http.server.body_receiver import DIRECT_BYTES, BodyReceiver
from nereid.services.gateway.http.server.call import JOIN_BYTES, HttpCall
from nereid.services.gateway.http.server.framing import read_head, without_upgrade
from nereid.services.gateway.http.server.known_head import KnownHead
from nereid.services.gateway.http.server.limits import RequestRejected

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import Callable

    from nereid.rpc.net.budget import Account, ByteBudget
    from nereid.services.gateway.http.server.body import AllocateBody
    from nereid.services.gateway.http.server.limits import HttpLimits

    Dispatch = Callable[[HttpCall], None]

_log = logging.getLogger(__name__)

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# What is parsed of further requests before other connections have their turn, and how many of them
# are accepted without being parsed.
_TURN_BYTES: Final = 4096
_TURN_REQUESTS: Final = range(16)
# What a request costs beside its body while it waits behind others.
_QUEUED_CALL_BYTES: Final = 2048
_RETRY_AFTER: Final = b"Retry-After: 1\r\n"
# In place of the time, which costs a call: since the connections were last swept.
_SINCE_SWEEP: Final = math.inf


class ConnectionOwner(Protocol):
    """Whom a connection reports to: its server."""

    @property
    def statuses(self) -> defaultdict[bytes, int]:
        """The number of responses by status, which its connections count."""

    def on_connected(self, connection: HttpConnection) -> None:
        """There is a transport; behind a TLS handshake that may never happen."""

    def on_disconnected(self, connection: HttpConnection) -> None:
        """Called if there was a transport."""


class HttpConnection:
    """One client's connection. Owns its calls until each is completed or the connection is lost.

    An asyncio.Protocol, though not by inheritance: a compiled class may extend compiled ones only.
    """

    # More attributes than the interpreter's inline dictionaries hold: without slots each access
    # would be a look-up.
    __slots__ = (
        "_account",
        "_allocate_body",
        "_body",
        "_body_receiver",
        "_budget",
        "_call",
        "_closing",
        "_continue_due",
        "_deferred",
        "_dispatch",
        "_draining",
        "_eof_received",
        "_first_bytes",
        "_flushing",
        "_header_bytes",
        "_held_bytes",
        "_in_flight",
        "_in_headers",
        "_known_head",
        "_last_activity",
        "_limits",
        "_lingering",
        "_loop",
        "_must_linger",
        "_owner",
        "_parser",
        "_peer",
        "_probe_timer",
        "_queued",
        "_reading",
        "_refusal",
        "_statuses",
        "_transport",
        "_turn_due",
        "_upgrade",
        "_upload",
        "_writable",
        "client",
        "secure",
    )

    __deletable__ = ("_parser",)

    def __init__(
        self,
        dispatch: Dispatch,
        limits: HttpLimits,
        owner: ConnectionOwner,
        allocate_body: AllocateBody | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """budget: of all clients' bytes; None: they are not counted."""
        self._budget = budget
        self._account: Account | None = None
        # Whose it is (nereid.rpc.net.address.client_of).
        self.client = ""
        # Over TLS.
        self.secure = False
        # Why its requests are refused; None: they are not.
        self._refusal: str | None = None
        # Charged for the request that is arriving.
        self._held_bytes = 0
        self._upload = UploadWatch(limits.upload)
        self._dispatch = dispatch
        self._limits = limits
        self._owner = owner
        self._statuses = owner.statuses
        self._allocate_body = allocate_body
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._parser = httptools.HttpRequestParser(self)
        # The request being parsed.
        self._call: HttpCall | None = None
        self._body = RequestBody(limits)
        # The transport's protocol in place of the connection, while a large body arrives.
        self._body_receiver: BodyReceiver | None = None
        self._header_bytes = 0
        self._in_headers = self._upgrade = False
        # What the request being parsed began with; the last head that qualified.
        self._first_bytes: bytes | None = None
        self._known_head: KnownHead | None = None
        # Dispatched and not yet written, in order; parsed and not yet dispatched.
        self._in_flight: deque[HttpCall] = deque()
        self._queued: deque[HttpCall] = deque()
        self._continue_due = self._flushing = False
        self._reading = self._writable = True
        # No further requests; close once the responses are written.
        self._closing = self._eof_received = False
        # The client is still sending what was rejected; its bytes are read and dropped.
        self._must_linger = self._lingering = False
        # The server is draining: every response closes its connection.
        self._draining = False
        # Read, but left for a further turn of the loop.
        self._deferred = b""
        self._turn_due = False
        self._last_activity = self._loop.time()
        self._probe_timer: asyncio.TimerHandle | None = None

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peer = text_of(transport.get_extra_info("peername"))
        self.client = client_of(self._peer)
        self.secure = transport.get_extra_info("ssl_object") is not None
        if self._budget is not None:
            self._account = self._budget.open_account(self.client)
        self._owner.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._owner.on_disconnected(self)
        self._transport = None
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        calls = [*self._in_flight, *self._queued]
        self._in_flight.clear()
        self._queued.clear()
        for call in calls:
            call.cancel()
        # An incomplete request is dropped; parser and connection hold each other.
        self._call = self._first_bytes = self._known_head = None
        self._deferred = b""
        self._body.clear()
        self._body_receiver = None
        del self._parser
        if self._account is not None:
            self._release_arriving()
            self._account.close()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        known_head = self._known_head
        try:
            if (
                known_head is not None
                and len(data) == known_head.end
                and self._call is None
                and not (self._in_flight or self._deferred or self._held_bytes)
                and data.startswith(known_head.text)
            ):
                # Nearly all requests: one that is like the one before, after its response.
                self._accept_alone(known_head, data)
                return
            if self._call is None:
                if known_head is not None:
                    data = self._accept_known_heads(known_head, data)
                if not (data or self._deferred or self._held_bytes):
                    # Nothing is left of what was read.
                    if (
                        self._closing
                        or not self._reading
                        or len(self._in_flight) >= self._limits.max_pipelined
                    ):
                        self._update_transport()
                    return
                self._first_bytes = data
            elif not self._in_headers:
                self._last_activity = self._loop.time()
            self._receive(data)
        except (RequestRejected, httptools.HttpParserError) as error:
            self._reject_for(error)
        self._update_transport()

    def _receive(self, data: bytes) -> None:
        """Parse what is no request with a known head. Raises as the parser does."""
        if self._body.buffer is not None:
            data = self._fill_body_buffer(data)
        if len(data) <= _TURN_BYTES:
            self._parse(data)
        else:
            self._parse_turn(data)
        if self._call is not None or self._deferred or self._held_bytes:
            self._charge_arriving()
            if self._body.buffer is not None and self._body.missing_bytes >= DIRECT_BYTES:
                self._receive_directly()

    def on_body_received(self, size_bytes: int) -> None:
        """From the body's receiver: more of the body is in its buffer."""
        if self._closing:
            return
        self._last_activity = self._loop.time()
        try:
            self._body.count_received(size_bytes)
            if self._body.buffer_full:
                self._complete_body_buffer()
            else:
                self._charge_arriving()
        except RequestRejected as error:
            self._reject_for(error)
        self._update_transport()

    def eof_received(self) -> bool:
        self._eof_received = self._closing = True
        # An incomplete request is dropped; complete ones get their responses, except over TLS,
        # which has no half-closed connections.
        if not (self.busy and self._transport and self._transport.can_write_eof()):
            return False
        self._probe_timer = self._loop.call_later(self._limits.probe_delay_s, self._probe_client)
        return True

    def pause_writing(self) -> None:
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    # --- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._call = HttpCall(self._on_call_progress, self._peer, self._account)
        self._in_headers = True
        self._body.clear()
        self._upload.restart()
        self._last_activity = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_headers = False
        call = self._current
        parser = self._parser
        if parser.should_upgrade():
            # The parser skips the body of an upgrade; see _parse.
            self._upgrade = True
            return
        self._continue_due = read_head(call, parser)
        call.keep_alive = call.keep_alive and not self._draining
        self._body.begin(call, self._allocate_body)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_chunk_header(self) -> None:
        self._body.begin_chunk()

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        call, self._call = self._current, None
        self._body.move_to(call)
        if self._held_bytes:
            call.held_bytes, self._held_bytes = self._held_bytes, 0
        self._continue_due = False
        if self._first_bytes is not None:
            self._known_head = KnownHead.from_call(call, self._first_bytes)
            self._first_bytes = None
        self._accept_request(call)

    # --- requests -------------------------------------------------------------------------------

    @property
    def _current(self) -> HttpCall:
        if self._call is None:
            raise RequestRejected(400, "malformed HTTP request")
        return self._call

    def _accept_alone(self, known_head: KnownHead, data: bytes) -> None:
        """Accept the request that data is, while no other is in flight."""
        call = HttpCall(self._on_call_progress, self._peer, self._account)
        known_head.fill_call(call, data)
        self._last_activity = _SINCE_SWEEP
        if self._draining:
            call.keep_alive = False
        self._dispatch_call(call)
        if not call.keep_alive:
            self._closing = True
        if self._closing or len(self._in_flight) >= self._limits.max_pipelined:
            self._update_transport()

    def _accept_known_heads(self, known_head: KnownHead, data: bytes) -> bytes:
        """Accept the requests with the known head that data begins with, as far as a turn goes;
        returns the rest.
        """
        for _ in _TURN_REQUESTS:
            if not known_head.matches(data) or self._closing:
                break
            call = HttpCall(self._on_call_progress, self._peer, self._account)
            known_head.fill_call(call, data)
            data = data[known_head.end :]
            call.keep_alive = not self._draining
            self._accept_request(call)
        else:
            self._deferred = data
            return b""
        return data

    def _fill_body_buffer(self, data: bytes) -> bytes:
        rest = self._body.fill_buffer(data)
        if self._body.buffer_full:
            self._complete_body_buffer()
        return rest

    def _complete_body_buffer(self) -> None:
        self._stop_receiving_directly()
        # The old parser still waits for the body that it was not given.
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    def _receive_directly(self) -> None:
        """Have the rest of the body read to where it belongs; TLS has it in a buffer anyway."""
        if self._transport is not None and not (self.secure or self._closing or self._deferred):
            self._body_receiver = BodyReceiver(self, self._body.missing_view)
            self._set_protocol(self._transport, self._body_receiver)

    def _stop_receiving_directly(self) -> None:
        if self._body_receiver is not None and self._transport is not None:
            self._set_protocol(self._transport, cast("asyncio.Protocol", self))
        self._body_receiver = None

    def _set_protocol(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        if transport.is_closing():
            return
        # How a transport reads is decided when it begins to.
        if self._reading:
            transport.pause_reading()
        transport.set_protocol(protocol)
        if self._reading:
            transport.resume_reading()

    def _parse_turn(self, data: bytes) -> None:
        """Parse the beginning of data, and all that belongs to one body; further requests are left
        until other connections had their turn.
        """
        at = 0
        while at < len(data) and not self._closing:
            stop = at + max(_TURN_BYTES, self._body.missing_bytes if self._in_body else 0)
            self._parse(data[at:stop])
            at = stop
            if not self._in_body:
                break
        self._deferred = data[at:]

    @property
    def _in_body(self) -> bool:
        return self._call is not None and not self._in_headers

    def _read_on(self) -> None:
        """The next turn of what was read already."""
        self._turn_due = False
        data, self._deferred = self._deferred, b""
        if self._transport is None:
            return
        if self._closing:
            self._update_transport()
        else:
            self.data_received(data)

    def _parse(self, data: bytes) -> None:
        before = self._call
        if self._in_body:
            self._body.count_wire_bytes(len(data))
        size_bytes = len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # Upgrades are ignored: parse the request again without the offer.
                head = without_upgrade(self._current, self._parser.get_method())
                self._upgrade = False
                self._parser = httptools.HttpRequestParser(self)
                data = head + data[upgrade.args[0] :]
        if not self._in_headers:
            self._header_bytes = 0
        elif self._call is before:
            self._header_bytes += size_bytes
        else:
            # Some of it belongs to requests before this one.
            self._header_bytes = size_bytes
        if self._header_bytes > self._limits.max_header_bytes:
            self._reject(431, f"request headers exceed {self._limits.max_header_bytes} bytes")

    def _accept_request(self, call: HttpCall) -> None:
        """Dispatch or queue a complete request."""
        self._last_activity = _SINCE_SWEEP
        if self._closing:
            # Behind the last request that this connection takes; the client may send it again.
            return
        if self._queued or len(self._in_flight) >= self._limits.max_pipelined:
            self._hold(call, len(call.body) + _QUEUED_CALL_BYTES)
            self._queued.append(call)
        else:
            self._dispatch_call(call)
        # The parser stops by itself after a request that closes the connection; this covers those
        # that the server decided to be the last.
        self._closing = self._closing or not call.keep_alive

    def _dispatch_call(self, call: HttpCall) -> None:
        self._in_flight.append(call)
        if call.done:
            return
        try:
            if self._refusal is not None:
                raise RequestRejected(503, self._refusal, _RETRY_AFTER)
            self._dispatch(call)
            if call.body and not call.done:
                # Not handed on yet: it waits for a thread or another service.
                self._hold(call, max(0, len(call.body) - call.held_bytes))
        except RequestRejected as rejected:
            on_cancel = call.on_cancel
            call.fail(rejected.status, rejected.message, extra=rejected.extra)
            if on_cancel is not None:
                on_cancel()
        except Exception:
            _log.exception("HTTP request failed: target=%r", call.target)
            call.fail(500, INTERNAL_MESSAGE)

    def _charge_arriving(self) -> None:
        """Charge what has arrived of a request that is not complete, and what is left unparsed."""
        arrived = len(self._deferred)
        if self._call is not None:
            arrived += self._header_bytes if self._in_headers else self._body.size_bytes
        growth = arrived - self._held_bytes
        if self._account is None or not growth:
            return
        if growth < 0:
            self._account.release(-growth)
        else:
            try:
                self._account.charge(growth, self._held_bytes)
            except OverBudgetError as error:
                raise RequestRejected(503, error.message, _RETRY_AFTER) from None
        self._held_bytes = arrived

    def _release_arriving(self) -> None:
        if self._held_bytes and self._account is not None:
            self._account.release(self._held_bytes)
            self._held_bytes = 0

    def _hold(self, call: HttpCall, size_bytes: int) -> None:
        try:
            call.hold(size_bytes)
        except OverBudgetError as error:
            raise RequestRejected(503, error.message, _RETRY_AFTER) from None

    def _reject_for(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):
            cause = error.__context__
            if not isinstance(cause, RequestRejected):
                _log.error("HTTP request failed while it was parsed", exc_info=cause)
                self._reject(500, INTERNAL_MESSAGE)
                return
            error = cause
        if isinstance(error, RequestRejected):
            self._reject(error.status, error.message, error.extra)
        else:
            self._reject(400, f"malformed HTTP request: {error}")

    def _reject(self, status: int, message: str, extra: bytes = b"") -> None:
        """Respond to a request that is not read any further, then close."""
        if self._closing:
            return
        call = self._call or HttpCall(self._on_call_progress, self._peer, self._account)
        self._call = None
        self._in_headers = self._continue_due = False
        self._body.clear()
        self._stop_receiving_directly()
        self._release_arriving()
        self._closing = self._must_linger = True
        call.keep_alive = False
        (self._queued or self._in_flight).append(call)
        call.fail(status, message, extra=extra)

    # --- responses ------------------------------------------------------------------------------

    def _on_call_progress(self) -> None:
        """Some call has a response or a part of one: write what is next in order."""
        in_flight, transport = self._in_flight, self._transport
        if self._flushing or not in_flight or transport is None:
            return
        first = in_flight[0]
        if not first.done:
            self._write_stream(transport)
            return
        if len(in_flight) == 1 and not self._queued:
            # Nearly all responses.
            in_flight.clear()
            if not first.keep_alive:
                self._closing = True
            self._last_activity = _SINCE_SWEEP
            self._write_response(first, transport)
        else:
            self._write_responses(transport)
        # While it reads, a call fewer in flight asks for nothing else.
        if self._closing or self._continue_due or self._deferred or not self._reading:
            self._update_transport()

    def _write_responses(self, transport: asyncio.Transport) -> None:
        """Write what is next in order, and dispatch the calls that may be in flight then."""
        in_flight = self._in_flight
        self._flushing = True
        try:
            while in_flight and in_flight[0].done:
                call = in_flight.popleft()
                self._write_response(call, transport)
                if not call.keep_alive:
                    self._closing = True
                self._last_activity = _SINCE_SWEEP
                while self._queued and len(in_flight) < self._limits.max_pipelined:
                    self._dispatch_call(self._queued.popleft())
            if in_flight and in_flight[0].unwritten:
                self._write_stream(transport)
                in_flight[0].control_flow(paused=not self._writable)
        finally:
            self._flushing = False

    def _write_stream(self, transport: asyncio.Transport) -> None:
        """More of a streamed response is there; only that of the first call can be written."""
        first = self._in_flight[0]
        if first.unwritten:
            queued_bytes = transport.get_write_buffer_size()
            self._write_response(first, transport)
        else:
            queued_bytes = max(call.queued_bytes for call in self._in_flight)
        if queued_bytes > self._limits.max_unsent_bytes:
            transport.abort()

    def _set_writable(self, writable: bool) -> None:
        self._writable = writable
        if self._in_flight:
            self._in_flight[0].control_flow(paused=not writable)
        self._update_transport()

    def _write_response(self, call: HttpCall, transport: asyncio.Transport) -> None:
        parts, call.unwritten = call.unwritten, []
        if not call.head_written:
            call.head_written = True
            self._statuses[parts[0][9:12]] += 1  # behind "HTTP/1.1 "
        if len(parts) == 1:
            transport.write(parts[0])
        elif sum(map(len, parts)) <= JOIN_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)

    # --- the transport --------------------------------------------------------------------------

    def _update_transport(self) -> None:
        """Do what the present state asks for: close, ask for a body, pause or resume reading."""
        transport = self._transport
        if transport is None or self._flushing or self._lingering or transport.is_closing():
            return
        if not self._in_flight and not self._queued:
            if self._closing:
                self._close(transport)
                return
            if self._continue_due:
                self._continue_due = False
                transport.write(_CONTINUE)
        read = self._writable and len(self._in_flight) < self._limits.max_pipelined
        if self._deferred:
            if read and not self._turn_due:
                self._turn_due = True
                self._loop.call_soon(self._read_on)
            read = False
        if read is not self._reading and not self._eof_received:
            self._reading = read
            if read:
                self._last_activity = self._loop.time()
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _close(self, transport: asyncio.Transport) -> None:
        if self._eof_received or not self._must_linger:
            transport.close()
            return
        # Closing with unread bytes would reset the connection, and the client would lose the
        # response.
        self._lingering = True
        if transport.can_write_eof():
            transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        self._loop.call_later(self._limits.linger_s, transport.close)

    def _probe_client(self) -> None:
        """Find out whether the client that sent its FIN still waits for its response."""
        self._probe_timer = None
        if self._transport is None or not self._in_flight:
            return
        self._in_flight[0].write_probe(self._transport.write)
        self._probe_timer = self._loop.call_later(self._limits.probe_interval_s, self._probe_client)

    # --- for the server -------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether requests are in flight or queued."""
        return bool(self._in_flight or self._queued)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0

    def close_if_silent(self, now: float) -> None:
        """Close the connection if its client has sent nothing for too long."""
        if self._last_activity == _SINCE_SWEEP:
            self._last_activity = now
        silent_s = now - self._last_activity
        if self.busy or not self._reading or self._transport is None:
            # Waiting for us, or not read from; the server's stall detection covers its reading.
            self._upload.restart()
            return
        if self._closing or self._call is None:
            if silent_s > self._limits.idle_timeout_s:
                # Not close: that would wait for a client that does not read its responses.
                self._transport.abort()
        elif silent_s > self._limits.silence_s(in_headers=self._in_headers) or (
            not self._in_headers and self._upload.overdue(self._body.received_bytes, now)
        ):
            self._reject(408, "the request did not arrive in time")

    def refuse_requests(self, message: str) -> None:
        """Respond to every request with 503."""
        self._refusal = message

    def close_after_next_response(self) -> None:
        """Let the next response whose head is not yet made carry `Connection: close`."""
        self._draining = True
        for calls in (self._queued, self._in_flight):
            if calls and not calls[-1].done:
                calls[-1].keep_alive = False
                self._closing = True
                return

    def close_after_in_flight(self) -> None:
        """Accept no further request; close once those in flight are responded to."""
        self._closing = True
        self._update_transport()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
