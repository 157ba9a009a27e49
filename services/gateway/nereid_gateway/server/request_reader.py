"""The bytes of one HTTP/1.1 connection in, complete requests out, on httptools' parser.

A request whose headers repeat the previous ones byte by byte needs no parser (known_headers). Of
what was read, a turn of the event loop parses a part; the rest is left for further turns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import httptools

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.rpc.net.limits.budget import OverBudgetError
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

# What is parsed of further requests before other connections have their turn, and how many of them
# are accepted without being parsed.
_TURN_BYTES: Final = 4096
_TURN_REQUESTS: Final = range(16)


class RequestReader:
    """Hands complete requests to the connection's OrderedResponses. Also the parser's protocol: the
    methods on_message_begin() to on_message_complete() are its callbacks.
    """

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
        # No more than one request may be in flight.
        self._one_is_all = limits.max_pipelined == 1
        self._peer = ""
        self._account: Account | None = None
        self._parser = httptools.HttpRequestParser(self)
        # The request being parsed.
        self.call: HttpCall | None = None
        self.body = RequestBody(limits)
        self._header_bytes = 0
        self._in_headers = self._upgrade = False
        # What the request being parsed began with; the last headers that qualified.
        self._first_bytes: bytes | None = None
        self._known_headers: KnownHeaders | None = None
        # Read, but left for a further turn of the event loop.
        self.deferred = b""
        # Charged for the request that is arriving.
        self._held_bytes = 0
        # The client waits for 100 Continue before it sends its body.
        self.continue_due = False
        # A request was rejected of which the client may still send the rest.
        self.rejected = False

    def open(self, peer: str, account: Account | None) -> None:
        """The client is connected. account: where its bytes are charged; None: nowhere."""
        self._peer = peer
        self._account = account

    def close(self) -> None:
        """The connection is lost; an incomplete request is dropped."""
        self.call = self._first_bytes = self._known_headers = None
        self.deferred = b""
        self.body.clear()
        # Reference cycles: the parser holds the reader, and the callback the connection.
        del self._parser, self._on_call_progress
        self._release_arriving()

    # --- bytes ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> bool:
        """Read on. Returns whether the connection may have to close, to pause or to ask for a body.

        Raises:
            RequestRejected, httptools.HttpParserError: for reject_for().
        """
        responses = self._responses
        if responses.closing:
            return False
        known_headers = self._known_headers
        if (
            known_headers is not None
            and len(data) == known_headers.end
            and self.call is None
            and not (responses.in_flight or self.deferred or self._held_bytes)
            and data.startswith(known_headers.text)
        ):
            # Nearly all requests: one that is like the one before, after its response.
            call = HttpCall(self._on_call_progress, self._peer, self._account)
            known_headers.fill_call(call, data)
            self._liveness.last_activity = SINCE_SWEEP
            if responses.draining:
                call.keep_alive = False
            responses.dispatch_call(call)
            if not call.keep_alive:
                responses.closing = True
            return responses.closing or self._one_is_all
        if self.call is None:
            if known_headers is not None:
                data = self._accept_known_headers(known_headers, data)
            if not (data or self.deferred or self._held_bytes):
                # Nothing is left of what was read.
                return responses.closing or responses.full
            self._first_bytes = data
        elif not self._in_headers:
            self._liveness.on_activity()
        self._parse_received(data)
        return True

    def count_body(self, size_bytes: int) -> None:
        """More of the body is in its buffer. Raises RequestRejected."""
        self._liveness.on_activity()
        self.body.count_received(size_bytes)
        if self.body.buffer_full:
            self._complete_body_buffer()
        else:
            self._charge_arriving()

    def take_deferred(self) -> bytes:
        """What was left for another turn, which has come."""
        data, self.deferred = self.deferred, b""
        return data

    @property
    def missing_body_bytes(self) -> int:
        """What a body lacks that is written to a buffer."""
        return 0 if self.body.buffer is None else self.body.missing_bytes

    @property
    def received_body_bytes(self) -> int | None:
        """Of the request that is arriving; None: its head is not complete."""
        return None if self._in_headers else self.body.received_bytes

    def _accept_known_headers(self, known_headers: KnownHeaders, data: bytes) -> bytes:
        """Accept the requests with the known headers that data begins with, as far as a turn goes;
        returns the rest.
        """
        for _ in _TURN_REQUESTS:
            if not known_headers.matches(data) or self._responses.closing:
                break
            call = HttpCall(self._on_call_progress, self._peer, self._account)
            known_headers.fill_call(call, data)
            data = data[known_headers.end :]
            call.keep_alive = not self._responses.draining
            self._accept_request(call)
        else:
            self.deferred = data
            return b""
        return data

    def _accept_request(self, call: HttpCall) -> None:
        self._liveness.last_activity = SINCE_SWEEP
        self._responses.add_call(call)

    def _parse_received(self, data: bytes) -> None:
        """Parse what is no request with known headers. Raises as the parser does."""
        if self.body.buffer is not None:
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
        # The old parser still waits for the body that it was not given.
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    def _parse_turn(self, data: bytes) -> None:
        """Parse the beginning of data, and all that belongs to one body; further requests are left
        until other connections had their turn.
        """
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
        return self.call is not None and not self._in_headers

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
                # Upgrades are ignored: parse the request again without the offer.
                head = without_upgrade(self.current, self._parser.get_method())
                self._upgrade = False
                self._parser = httptools.HttpRequestParser(self)
                data = head + data[upgrade.args[0] :]
        if not self._in_headers:
            self._header_bytes = 0
        elif self.call is before:
            self._header_bytes += size_bytes
        else:
            # Some of it belongs to requests before this one.
            self._header_bytes = size_bytes
        if self._header_bytes > self._limits.max_header_bytes:
            self.reject(431, f"request headers exceed {self._limits.max_header_bytes} bytes")

    # --- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.call = self.make_call(self._on_call_progress, self._peer, self._account)
        self._in_headers = True
        self.body.clear()
        self._liveness.begin_request()

    def on_url(self, url: bytes) -> None:
        self.current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers, name = self.current.headers, name.lower()
        if name == b"transfer-encoding" and name in headers:
            # Lines of one field are one list.
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_headers = False
        call = self.current
        parser = self._parser
        if parser.should_upgrade():
            # The parser skips the body of an upgrade; see _parse.
            self._upgrade = True
            return
        self.continue_due = read_headers(call, parser)
        call.keep_alive = call.keep_alive and not self._responses.draining
        self.body.begin(call, self._allocate_body)

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_chunk_header(self) -> None:
        self.body.begin_chunk()

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        call, self.call = self.current, None
        self.body.move_to(call)
        if self._held_bytes:
            call.held_bytes, self._held_bytes = self._held_bytes, 0
        self.continue_due = False
        if self._first_bytes is not None:
            self._known_headers = self.known_headers_of(call, self._first_bytes)
            self._first_bytes = None
        self._accept_request(call)

    @property
    def current(self) -> HttpCall:
        """The request being parsed."""
        if self.call is None:
            raise RequestRejected(400, "malformed HTTP request")
        return self.call

    def make_call(
        self, on_progress: Callable[[], None], peer: str, account: Account | None
    ) -> HttpCall:
        """A request begins to arrive."""
        return HttpCall(on_progress, peer, account)

    def known_headers_of(self, call: HttpCall, first_bytes: bytes) -> KnownHeaders | None:
        """The head of a request, if requests with the same one need no parser."""
        return KnownHeaders.from_call(call, first_bytes)

    # --- what is charged, and refused -----------------------------------------------------------

    def _charge_arriving(self) -> None:
        """Charge what has arrived of a request that is not complete, and what is left unparsed."""
        arrived = len(self.deferred)
        if self.call is not None:
            arrived += self._header_bytes if self._in_headers else self.body.size_bytes
        growth = arrived - self._held_bytes
        if self._account is None or not growth:
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
        if self._held_bytes and self._account is not None:
            self._account.release(self._held_bytes)
            self._held_bytes = 0

    def reject_for(self, error: Exception) -> None:
        """Reject the request that made receive() or the parser fail."""
        if isinstance(error, httptools.HttpParserCallbackError):
            cause = error.__context__
            if not isinstance(cause, RequestRejected):
                _log.error("HTTP request failed while it was parsed", exc_info=cause)
                self.reject(500, INTERNAL_MESSAGE)
                return
            error = cause
        if isinstance(error, RequestRejected):
            self.reject(error.status, error.message, error.extra)
        else:
            self.reject(400, f"malformed HTTP request: {error}")

    def reject(self, status: int, message: str, extra: bytes = b"") -> None:
        """Respond to a request that is not read any further, then close."""
        if self._responses.closing:
            return
        call = self.call or self.make_call(self._on_call_progress, self._peer, self._account)
        self.call = None
        self._in_headers = self.continue_due = False
        self.body.clear()
        self._release_arriving()
        self.rejected = True
        self._responses.reject_call(call, status, message, extra)
