"""Parses the bytes of one HTTP/1.1 connection into requests, with httptools.

A request that repeats the last headers byte by byte needs no parser (known_headers). Each turn of
the event loop parses a part of the received bytes and defers the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import httptools

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.rpc.net.limits.budget import NO_ACCOUNT, OverBudgetError
from nereid_gateway.server.body import RequestBody
from nereid_gateway.server.call import HttpCall
from nereid_gateway.server.framing import read_headers, without_upgrade
from nereid_gateway.server.known_headers import KnownHeaders
from nereid_gateway.server.limits import RequestRejected
from nereid_gateway.server.liveness import SINCE_SWEEP
from nereid_gateway.server.ordered_responses import RETRY_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.net.limits.budget import Account
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.limits import HttpLimits
    from nereid_gateway.server.liveness import Liveness
    from nereid_gateway.server.ordered_responses import OrderedResponses

_log = logging.getLogger(__name__)

# Bytes parsed in one turn before other connections have their turn.
_TURN_BYTES: Final = 4096
# Requests with known headers that one turn accepts.
_TURN_REQUESTS: Final = 16

# States of the request that arrives. on_message_begin() leads from _IDLE to _HEADERS,
# on_headers_complete() to one of the next three, on_message_complete() back to _IDLE, and reject()
# to _REJECTED.
_IDLE: Final = 0
_HEADERS: Final = 1
_BODY: Final = 2
_BUFFERED_BODY: Final = 3
# The head offers an upgrade. The parser skips the body, and the head is parsed again (_parse).
_UPGRADE: Final = 4
# The client may still send the rest of the request.
_REJECTED: Final = 5
_NO_MEMORY: Final = "not enough memory for the request"


class RequestReader:
    """Hands complete requests to OrderedResponses. The parser calls methods such as on_url()."""

    __deletable__ = ("_on_call_progress", "_parser")

    def __init__(
        self,
        responses: OrderedResponses,
        liveness: Liveness,
        limits: HttpLimits,
        on_call_progress: Callable[[], None],
        allocate_body: AllocateBody | None,
    ) -> None:
        self._responses = responses
        self._liveness = liveness
        self._limits = limits
        self._on_call_progress = on_call_progress
        self._allocate_body = allocate_body
        self._max_pipelined = limits.max_pipelined
        self._peer = ""
        self._account: Account = NO_ACCOUNT
        self._parser = httptools.HttpRequestParser(self)
        self.call: HttpCall | None = None
        self.body = RequestBody(limits)
        self._state = _IDLE
        self._header_bytes = 0
        # Received bytes that begin with the request, or None if they cannot become known headers.
        self._first_bytes: bytes | None = None
        self._known_headers: KnownHeaders | None = None
        # Received bytes that are left for a further turn of the event loop.
        self.deferred = b""
        # Bytes that the account is charged with, for the arriving request and for deferred bytes.
        self._held_bytes = 0
        # True if the client waits for 100 Continue before it sends the body.
        self.continue_due = False

    def open(self, peer: str, account: Account) -> None:
        """Begin to read a client's requests, and charge their bytes to account."""
        self._peer = peer
        self._account = account

    def close(self) -> None:
        """Drop an incomplete request, because the connection is lost."""
        self.call = self._first_bytes = self._known_headers = None
        self.deferred = b""
        self.body.clear()
        # The deletion breaks cycles: the parser refers to the reader, and the callback to the
        # connection.
        del self._parser, self._on_call_progress
        self._release_arriving()

    def receive(self, data: bytes) -> bool:
        """Read data. Return whether the connection may have to close, pause, or ask for a body.

        The caller passes RequestRejected, MemoryError and httptools.HttpParserError to
        reject_for().
        """
        responses = self._responses
        if responses.closing:
            return False
        if self._state == _IDLE:
            known, accepted = self._known_headers, 0
            while known is not None and len(data) >= known.end and data.startswith(known.text):
                if accepted == _TURN_REQUESTS:
                    self.deferred, data = data, b""
                    break
                call = HttpCall(
                    self._on_call_progress,
                    self._peer,
                    self._account,
                    known,
                    data[known.start : known.end],
                )
                data = data[known.end :]
                if responses.draining:
                    call.keep_alive = False
                self._liveness.last_activity = SINCE_SWEEP
                responses.add_call(call)
                if not data or responses.closing:
                    break
                accepted += 1
            if not (data or self.deferred or self._held_bytes):
                # All received bytes are parsed.
                return responses.closing or len(responses.in_flight) >= self._max_pipelined
            self._first_bytes = data
        elif self._state != _HEADERS:
            self._liveness.on_activity()
        self._parse_received(data)
        return True

    def count_body(self, size_bytes: int) -> None:
        """Count received bytes of the body. Raises RequestRejected beyond the budget."""
        self._liveness.on_activity()
        self.body.count_received(size_bytes)
        if self.body.buffer_full:
            self._complete_body_buffer()
        else:
            self._charge_arriving()

    def take_deferred(self) -> bytes:
        """Return the deferred bytes, and defer none."""
        data, self.deferred = self.deferred, b""
        return data

    @property
    def missing_body_bytes(self) -> int:
        """Missing bytes of a body that has a buffer, or 0 without a buffer."""
        return self.body.missing_bytes if self._state == _BUFFERED_BODY else 0

    @property
    def received_body_bytes(self) -> int | None:
        """Received bytes of the arriving request's body, or None before its head is complete."""
        return None if self._state == _HEADERS else self.body.received_bytes

    @property
    def rejected(self) -> bool:
        """True if a request was rejected and the client may still send the rest of it."""
        return self._state == _REJECTED

    def _parse_received(self, data: bytes) -> None:
        if self._state == _BUFFERED_BODY:
            data = self.body.fill_buffer(data)
            if self.body.buffer_full:
                self._complete_body_buffer()
        if len(data) <= _TURN_BYTES:
            self._parse(data)
        else:
            self._parse_turn(data)
        if self.call is not None or self.deferred or self._held_bytes:
            self._charge_arriving()

    def _complete_body_buffer(self) -> None:
        # The old parser still expects the body, which went into the buffer.
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    def _parse_turn(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self._responses.closing:
            stop = at + max(_TURN_BYTES, self.body.missing_bytes if self._in_body else 0)
            self._parse(data[at:stop])
            at = stop
            if not self._in_body:
                break
        self.deferred = data[at:]

    @property
    def _in_body(self) -> bool:
        return self._state in {_BODY, _BUFFERED_BODY}

    def _parse(self, data: bytes) -> None:
        before = self.call
        if self._in_body:
            self.body.count_wire_bytes(len(data))
        size_bytes = len(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # The server supports no upgrade, so the request is parsed again without the offer.
                head = without_upgrade(self.current, self._parser.get_method())
                self._parser = httptools.HttpRequestParser(self)
                data = head + data[upgrade.args[0] :]
        if self._state != _HEADERS:
            self._header_bytes = 0
        elif self.call is before:
            self._header_bytes += size_bytes
        else:
            # This is an upper bound, because the data also contains bytes of earlier requests.
            self._header_bytes = size_bytes
        if self._header_bytes > self._limits.max_header_bytes:
            self.reject(431, f"request headers exceed {self._limits.max_header_bytes} bytes")

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.call = self.make_call(self._on_call_progress, self._peer, self._account)
        self._state = _HEADERS
        self.body.clear()
        self._liveness.begin_request()

    def on_url(self, url: bytes) -> None:
        """Add a piece of the request's target."""
        self.current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        headers, name = self.current.headers, name.lower()
        if name == b"transfer-encoding" and name in headers:
            # Values of a repeated field form one list.
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        """Read the framing from the headers, and begin the body."""
        call = self.current
        parser = self._parser
        if parser.should_upgrade():
            self._state = _UPGRADE
            return
        self.continue_due = read_headers(call, parser)
        call.keep_alive = call.keep_alive and not self._responses.draining
        self.body.begin(call, self._allocate_body)
        self._state = _BODY if self.body.buffer is None else _BUFFERED_BODY

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body."""
        self.body.append(body)

    def on_chunk_header(self) -> None:
        """Begin a chunk."""
        self.body.begin_chunk()

    def on_message_complete(self) -> None:
        """Hand the complete request on."""
        if self._state == _UPGRADE:
            return
        self._state = _IDLE
        call, self.call = self.current, None
        self.body.move_to(call)
        if self._held_bytes:
            call.held_bytes, self._held_bytes = self._held_bytes, 0
        self.continue_due = False
        if self._first_bytes is not None:
            self._known_headers = self.known_headers_of(call, self._first_bytes)
            self._first_bytes = None
        self._liveness.last_activity = SINCE_SWEEP
        if not self._responses.closing:
            # Otherwise, the client may send the request again on another connection.
            self._responses.add_call(call)

    @property
    def current(self) -> HttpCall:
        """Request that is being parsed. Raises RequestRejected if there is none."""
        if self.call is None:
            raise RequestRejected(400, "malformed HTTP request")
        return self.call

    def make_call(self, on_progress: Callable[[], None], peer: str, account: Account) -> HttpCall:
        """Return an empty call for a request that begins to arrive."""
        return HttpCall(on_progress, peer, account)

    def known_headers_of(self, call: HttpCall, first_bytes: bytes) -> KnownHeaders | None:
        """Return the head of a request as known headers, or None if it does not qualify."""
        return KnownHeaders.from_call(call, first_bytes)

    def _charge_arriving(self) -> None:
        arrived = len(self.deferred)
        if self.call is not None:
            arrived += self._header_bytes if self._state == _HEADERS else self.body.size_bytes
        growth = arrived - self._held_bytes
        if not growth:
            return
        if growth < 0:
            self._account.release(-growth)
        else:
            try:
                self._account.charge(growth, self._held_bytes)
            except OverBudgetError as error:
                raise RequestRejected(503, error.message, RETRY_AFTER) from None
        self._held_bytes = arrived

    def _release_arriving(self) -> None:
        if self._held_bytes:
            self._account.release(self._held_bytes)
            self._held_bytes = 0

    def reject_for(self, error: Exception) -> None:
        """Reject the request for which receive() or the parser has raised error."""
        cause: BaseException | None = error
        if isinstance(error, httptools.HttpParserCallbackError):
            cause = error.__context__
        if isinstance(cause, RequestRejected):
            self.reject(cause.status, cause.message, cause.extra)
        elif isinstance(cause, MemoryError):
            _log.warning("HTTP request refused: %s", _NO_MEMORY)
            self.reject(503, _NO_MEMORY, RETRY_AFTER)
        elif cause is not error:
            _log.error("HTTP request failed while it was parsed", exc_info=cause)
            self.reject(500, INTERNAL_MESSAGE)
        else:
            self.reject(400, f"malformed HTTP request: {error}")

    def reject(self, status: int, message: str, extra: bytes = b"") -> None:
        """Respond to a request without reading its rest, then close the connection."""
        if self._responses.closing:
            return
        call = self.call or self.make_call(self._on_call_progress, self._peer, self._account)
        self.call = None
        self._state = _REJECTED
        self.continue_due = False
        self.body.clear()
        self._release_arriving()
        self._responses.reject_call(call, status, message, extra)
