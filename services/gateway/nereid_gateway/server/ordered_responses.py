"""The calls of one HTTP/1.1 connection: dispatched, and responded to in order.

Up to `max_pipelined` requests are in flight, and further requests are queued. A client that leaves
too much of a streamed response unread is disconnected.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid.rpc.writes.direct_writes import write_at_once
from nereid_gateway.server.call import JOIN_BYTES, HttpCall
from nereid_gateway.server.limits import CONTENT_TOO_LARGE, RequestRejected

if TYPE_CHECKING:
    import asyncio
    from collections import defaultdict
    from collections.abc import Callable

    from nereid_gateway.server.limits import HttpLimits

    Dispatch = Callable[[HttpCall], None]
    # Sets `encode_error` of a call before anything can fail it.
    SetErrorForm = Callable[[HttpCall], None]

_log = logging.getLogger(__name__)

RETRY_AFTER: Final = b"Retry-After: 1\r\n"
# This is charged for a queued request in addition to its body.
_QUEUED_CALL_BYTES: Final = 2048


class OrderedResponses:
    """Holds the calls of a connection until each is complete or the connection is lost."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: HttpLimits,
        statuses: defaultdict[bytes, int],
        set_error_form: SetErrorForm | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._set_error_form = set_error_form
        self._max_pipelined = limits.max_pipelined
        self._max_unsent_bytes = limits.max_unsent_bytes
        self._statuses = statuses
        # File descriptor of the transport's socket (direct_writes.descriptor_of).
        self.descriptor = -1
        # Dispatched calls whose responses are not completely written, in the order of requests.
        self.in_flight: deque[HttpCall] = deque()
        self._queued: deque[HttpCall] = deque()
        # True while _write_responses() runs.
        self.flushing = False
        # False while the client does not read its responses.
        self._writable = True
        # True if no further requests are accepted. The connection is closed after the responses.
        self.closing = False
        # True while the server drains: every response closes its connection.
        self.draining = False
        # If set, every request is refused with this message.
        self.refusal: str | None = None

    @property
    def busy(self) -> bool:
        """True if requests are in flight or queued."""
        return bool(self.in_flight or self._queued)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of responses that wait until earlier responses are written."""
        return sum(len(part) for call in self.in_flight for part in call.unwritten)

    @property
    def full(self) -> bool:
        """True if the maximum number of requests is in flight."""
        return len(self.in_flight) >= self._max_pipelined

    def add_call(self, call: HttpCall) -> None:
        """Dispatch or queue a request. Raises RequestRejected beyond the client's budget."""
        if self._queued or len(self.in_flight) >= self._max_pipelined:
            _hold(call, len(call.body) + _QUEUED_CALL_BYTES)
            self._queued.append(call)
        else:
            self._dispatch_call(call)
        if not call.keep_alive:
            # The parser stops by itself only after requests with which the client closes the
            # connection.
            self.closing = True

    def _dispatch_call(self, call: HttpCall) -> None:
        """Dispatch a request, which becomes the last request in flight."""
        self.in_flight.append(call)
        if call.done:
            return
        if self._set_error_form is not None:
            self._set_error_form(call)
        try:
            if self.refusal is not None:
                raise RequestRejected(503, self.refusal, RETRY_AFTER)
            self._dispatch(call)
            if call.body and not call.done:
                # The endpoint waits for a thread or another service. Meanwhile, the bytes are
                # charged to the client.
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
        """Respond to a request whose rest is not read, as the connection's last request."""
        self.closing = True
        call.keep_alive = False
        if self._set_error_form is not None:
            self._set_error_form(call)
        if status == CONTENT_TOO_LARGE and call.encode_error is None:
            # Triton's status for it.
            status = 400
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
        """Send `Connection: close` with the next response whose head has not been made."""
        self.draining = True
        for calls in (self._queued, self.in_flight):
            if calls and not calls[-1].done:
                calls[-1].keep_alive = False
                self.closing = True
                return

    def write_next(self, transport: asyncio.Transport) -> bool:
        """Write the responses that are ready, in order. Return whether one was completed."""
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
        """Note whether the client reads its responses, and pause or continue the producer."""
        self._writable = writable
        if self.in_flight:
            self.in_flight[0].control_flow(paused=not writable)

    def _write_responses(self, transport: asyncio.Transport) -> None:
        in_flight = self.in_flight
        self.flushing = True
        try:
            while in_flight and in_flight[0].done:
                call = in_flight.popleft()
                self._write_response(call, transport)
                if not call.keep_alive:
                    self.closing = True
                while self._queued and len(in_flight) < self._max_pipelined:
                    self._dispatch_call(self._queued.popleft())
            if in_flight and in_flight[0].unwritten:
                self._write_stream(transport)
                in_flight[0].control_flow(paused=not self._writable)
        finally:
            self.flushing = False

    def _write_stream(self, transport: asyncio.Transport) -> None:
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
            # Count after the write, so that the client does not wait for the count.
            call.head_written = True
            self._statuses[parts[0][9:12]] += 1  # behind "HTTP/1.1 "


def _hold(call: HttpCall, size_bytes: int) -> None:
    try:
        call.hold(size_bytes)
    except OverBudgetError as error:
        raise RequestRejected(503, error.message, RETRY_AFTER) from None
