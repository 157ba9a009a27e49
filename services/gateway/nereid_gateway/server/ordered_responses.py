"""Calls of one HTTP/1.1 connection: dispatched, and their responses written in order.

Requests may be pipelined: up to `max_pipelined` of them are in flight, further ones are queued. A
streamed response is written as it comes; a client that leaves too much of it unread is
disconnected.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid.rpc.writes.direct_writes import write_at_once
from nereid_gateway.server.call import JOIN_BYTES, HttpCall
from nereid_gateway.server.limits import RequestRejected

if TYPE_CHECKING:
    import asyncio
    from collections import defaultdict
    from collections.abc import Callable

    from nereid_gateway.server.limits import HttpLimits

    Dispatch = Callable[[HttpCall], None]

_log = logging.getLogger(__name__)

RETRY_AFTER: Final = b"Retry-After: 1\r\n"
# Bytes that are charged for a queued request beside its body.
_QUEUED_CALL_BYTES: Final = 2048


class OrderedResponses:
    """Own the calls of a connection until each is complete or the connection is lost."""

    def __init__(
        self, dispatch: Dispatch, limits: HttpLimits, statuses: defaultdict[bytes, int]
    ) -> None:
        """Count responses in statuses, by their status."""
        self._dispatch = dispatch
        self._max_pipelined = limits.max_pipelined
        self._max_unsent_bytes = limits.max_unsent_bytes
        self._statuses = statuses
        # Descriptor of the transport's socket (direct_writes.descriptor_of).
        self.descriptor = -1
        # Calls that were dispatched and are not yet written, in order.
        self.in_flight: deque[HttpCall] = deque()
        # Calls that were parsed and are not yet dispatched.
        self._queued: deque[HttpCall] = deque()
        # True while several responses are written, and calls are dispatched meanwhile.
        self.flushing = False
        # False while the client does not read what is written.
        self._writable = True
        # True if no further requests are accepted; the connection is closed once the responses are
        # written.
        self.closing = False
        # True while the server is draining: every response closes its connection.
        self.draining = False
        # Message with which all requests are refused, if any.
        self.refusal: str | None = None

    @property
    def busy(self) -> bool:
        """True if requests are in flight or queued."""
        return bool(self.in_flight or self._queued)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of responses, and parts of them, that wait for earlier responses."""
        return sum(len(part) for call in self.in_flight for part in call.unwritten)

    @property
    def full(self) -> bool:
        """True if as many requests are in flight as permitted."""
        return len(self.in_flight) >= self._max_pipelined

    # --- calls ----------------------------------------------------------------------------------

    def add_call(self, call: HttpCall) -> None:
        """Dispatch or queue a complete request.

        Raises:
            RequestRejected: the request cannot be queued.
        """
        if self.closing:
            # The request follows the last one that this connection accepts; the client may send it
            # again.
            return
        if self._queued or len(self.in_flight) >= self._max_pipelined:
            _hold(call, len(call.body) + _QUEUED_CALL_BYTES)
            self._queued.append(call)
        else:
            self.dispatch_call(call)
        # The parser stops by itself after a request that closes the connection; this covers
        # requests that the server decided to be the last.
        self.closing = self.closing or not call.keep_alive

    def dispatch_call(self, call: HttpCall) -> None:
        """Dispatch a request, which becomes the last of those in flight."""
        self.in_flight.append(call)
        if call.done:
            return
        try:
            if self.refusal is not None:
                raise RequestRejected(503, self.refusal, RETRY_AFTER)
            self._dispatch(call)
            if call.body and not call.done:
                # The request was not handed on yet: it waits for a thread or another service.
                _hold(call, max(0, len(call.body) - call.held_bytes))
        except RequestRejected as rejected:
            on_cancel = call.on_cancel
            call.fail(rejected.status, rejected.message, extra=rejected.extra)
            if on_cancel is not None:
                on_cancel()
        except Exception:
            _log.exception("HTTP request failed: target=%r", call.target)
            call.fail(500, INTERNAL_MESSAGE)

    def reject_call(self, call: HttpCall, status: int, message: str, extra: bytes) -> None:
        """Respond to a request that is not read any further; it is the connection's last one."""
        self.closing = True
        call.keep_alive = False
        (self._queued or self.in_flight).append(call)
        call.fail(status, message, extra=extra)

    def cancel_all(self) -> None:
        """Cancel all calls, because the client disconnected."""
        calls = [*self.in_flight, *self._queued]
        self.in_flight.clear()
        self._queued.clear()
        for call in calls:
            call.cancel()

    def close_after_next(self) -> None:
        """Let the next response whose head is not yet made carry `Connection: close`."""
        self.draining = True
        for calls in (self._queued, self.in_flight):
            if calls and not calls[-1].done:
                calls[-1].keep_alive = False
                self.closing = True
                return

    # --- responses ------------------------------------------------------------------------------

    def write_next(self, transport: asyncio.Transport) -> bool:
        """Write available responses, in order; return whether one was completed."""
        in_flight = self.in_flight
        if self.flushing or not in_flight:
            return False
        first = in_flight[0]
        if not first.done:
            self._write_stream(transport)
            return False
        if len(in_flight) == 1 and not self._queued:
            # Nearly all responses take this path.
            in_flight.clear()
            if not first.keep_alive:
                self.closing = True
            self._write_response(first, transport)
        else:
            self._write_responses(transport)
        return True

    def set_writable(self, writable: bool) -> None:
        """Note whether the client reads what is written."""
        self._writable = writable
        if self.in_flight:
            self.in_flight[0].control_flow(paused=not writable)

    def _write_responses(self, transport: asyncio.Transport) -> None:
        """Write responses in order, and dispatch the queued calls that may be in flight then."""
        in_flight = self.in_flight
        self.flushing = True
        try:
            while in_flight and in_flight[0].done:
                call = in_flight.popleft()
                self._write_response(call, transport)
                if not call.keep_alive:
                    self.closing = True
                while self._queued and len(in_flight) < self._max_pipelined:
                    self.dispatch_call(self._queued.popleft())
            if in_flight and in_flight[0].unwritten:
                self._write_stream(transport)
                in_flight[0].control_flow(paused=not self._writable)
        finally:
            self.flushing = False

    def _write_stream(self, transport: asyncio.Transport) -> None:
        """Write more of a streamed response, if it is that of the first call."""
        first = self.in_flight[0]
        if first.unwritten:
            queued_bytes = transport.get_write_buffer_size()
            self._write_response(first, transport)
        else:
            queued_bytes = max(call.queued_bytes for call in self.in_flight)
        if queued_bytes > self._max_unsent_bytes:
            transport.abort()

    def _write_response(self, call: HttpCall, transport: asyncio.Transport) -> None:
        parts, call.unwritten = call.unwritten, []
        if len(parts) == 1:
            write_at_once(transport, self.descriptor, parts[0])
        elif sum(map(len, parts)) <= JOIN_BYTES:
            write_at_once(transport, self.descriptor, b"".join(parts))
        else:
            transport.writelines(parts)
        if not call.head_written:
            # Statuses are counted after the write, so that the client does not wait for it.
            call.head_written = True
            self._statuses[parts[0][9:12]] += 1  # behind "HTTP/1.1 "


def _hold(call: HttpCall, size_bytes: int) -> None:
    try:
        call.hold(size_bytes)
    except OverBudgetError as error:
        raise RequestRejected(503, error.message, RETRY_AFTER) from None
