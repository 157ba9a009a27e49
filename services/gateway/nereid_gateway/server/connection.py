"""One HTTP/1.1 connection, put together from its parts.

Reading pauses while the maximum number of requests is in flight, and while the client does not read
its responses. A half-closed connection still gets its responses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from nereid.rpc.net.address import client_of, text_of
from nereid.rpc.net.limits.budget import NO_ACCOUNT
from nereid.rpc.writes.direct_writes import descriptor_of
from nereid_gateway.server.body_receiver import DIRECT_BYTES, BodyReceiver
from nereid_gateway.server.limits import RequestRejected
from nereid_gateway.server.liveness import Liveness
from nereid_gateway.server.ordered_responses import OrderedResponses
from nereid_gateway.server.request_reader import RequestReader

if TYPE_CHECKING:
    from collections import defaultdict

    from nereid.rpc.net.limits.budget import Account, ByteBudget
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.limits import HttpLimits
    from nereid_gateway.server.ordered_responses import Dispatch, SetErrorForm

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ConnectionOwner(Protocol):
    """Server that a connection reports to."""

    @property
    def statuses(self) -> defaultdict[bytes, int]:
        """Counts responses of all connections by status."""

    def on_connected(self, connection: HttpConnection) -> None:
        """Register a connection whose TLS handshake, if any, has succeeded."""

    def on_disconnected(self, connection: HttpConnection) -> None:
        """Forget a connection that was registered."""


class HttpConnection:
    """Connection of one client. It decides when to read from its transport and when to close.

    It does not inherit asyncio.Protocol: a compiled class may extend compiled classes only.
    """

    def __init__(  # noqa: PLR0913 (most by keyword)
        self,
        dispatch: Dispatch,
        limits: HttpLimits,
        owner: ConnectionOwner,
        allocate_body: AllocateBody | None = None,
        *,
        budget: ByteBudget | None = None,
        reader: type[RequestReader] = RequestReader,
        set_error_form: SetErrorForm | None = None,
    ) -> None:
        self._limits = limits
        self._owner = owner
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._liveness = Liveness(limits)
        self._responses = OrderedResponses(dispatch, limits, owner.statuses, set_error_form)
        self._reader = reader(
            self._responses, self._liveness, limits, self._on_call_progress, allocate_body
        )
        self._account: Account = NO_ACCOUNT
        # Client for which the connection is counted (nereid.rpc.net.address.client_of).
        self.client = ""
        self.secure = False
        self._transport: asyncio.Transport | None = None
        # While a large body arrives, this is the transport's protocol in place of the connection.
        self._body_receiver: BodyReceiver | None = None
        self._reading = self._writable = True
        self._eof_received = False
        # True after the response to a rejected request. The rest of the request is then dropped for
        # a while, before the connection is closed.
        self._lingering = False
        self._turn_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the account of the client, and register with the server."""
        self._transport = cast("asyncio.Transport", transport)
        self._responses.descriptor = descriptor_of(transport)
        peer = text_of(transport.get_extra_info("peername"))
        self.client = client_of(peer)
        self.secure = transport.get_extra_info("ssl_object") is not None
        if self._budget is not None:
            self._account = self._budget.open_account(self.client)
        self._reader.open(peer, self._account)
        self._owner.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel all calls, and release the bytes that are charged to the client."""
        self._owner.on_disconnected(self)
        self._transport = None
        self._liveness.stop_probing()
        self._responses.cancel_all()
        self._reader.close()
        self._body_receiver = None
        self._account.close()

    def data_received(self, data: bytes) -> None:
        """Read requests from data."""
        try:
            if not self._reader.receive(data):
                return
        except (RequestRejected, httptools.HttpParserError, MemoryError) as error:
            self._reader.reject_for(error)
        self._update_transport()

    def _on_body_received(self, size_bytes: int) -> None:
        if self._responses.closing:
            return
        try:
            self._reader.count_body(size_bytes)
        except RequestRejected as error:
            self._reader.reject_for(error)
        self._update_transport()

    def eof_received(self) -> bool:
        """Return whether the connection stays half-closed: it does while responses are pending."""
        self._eof_received = self._responses.closing = True
        # An incomplete request is dropped. Complete requests get responses, except over TLS, which
        # cannot half-close.
        if not (self._responses.busy and self._transport and self._transport.can_write_eof()):
            return False
        self._liveness.start_probing(self._write_probe)
        return True

    def pause_writing(self) -> None:
        """Pause reading and the producers of chunks, because the client does not read."""
        self._set_writable(False)

    def resume_writing(self) -> None:
        """Continue reading, and the producers of chunks."""
        self._set_writable(True)

    def _on_call_progress(self) -> None:
        responses = self._responses
        transport = self._transport
        if transport is None:
            return
        if not responses.write_next(transport):
            if len(responses.in_flight) > 1 or not self._writable:
                self._count_unread()
            return
        reader = self._reader
        # In all other cases, the transport needs no update after a response.
        if responses.closing or reader.continue_due or reader.deferred or not self._reading:
            if not self._writable:
                self._count_unread()
            self._update_transport()

    def _set_writable(self, writable: bool) -> None:
        self._writable = writable
        self._count_unread()
        self._responses.set_writable(writable)
        self._update_transport()

    def _count_unread(self) -> None:
        self._account.set_unread(self.unsent_bytes + self._responses.waiting_bytes)

    def _update_transport(self) -> None:
        transport, responses, reader = self._transport, self._responses, self._reader
        if transport is None:
            return
        self._choose_protocol(transport)
        if responses.flushing or self._lingering or transport.is_closing():
            return
        if not responses.busy:
            if responses.closing:
                self._close(transport)
                return
            if reader.continue_due:
                reader.continue_due = False
                transport.write(_CONTINUE)
        read = self._writable and not responses.full
        if reader.deferred:
            if read and not self._turn_due:
                self._turn_due = True
                self._loop.call_soon(self._read_on)
            read = False
        if read is not self._reading and not self._eof_received:
            self._reading = read
            if read:
                self._liveness.on_activity()
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _read_on(self) -> None:
        self._turn_due = False
        data = self._reader.take_deferred()
        if self._transport is None:
            return
        if not self._responses.closing:
            self.data_received(data)
        self._update_transport()

    def _choose_protocol(self, transport: asyncio.Transport) -> None:
        """Use a receiver for the rest of a large body. Over TLS, a receiver would save no copy."""
        missing = self._reader.missing_body_bytes
        if self._body_receiver is not None:
            if not missing:
                self._set_protocol(transport, cast("asyncio.Protocol", self))
                self._body_receiver.close()
                self._body_receiver = None
        elif missing >= DIRECT_BYTES and not (
            self.secure or self._responses.closing or self._reader.deferred
        ):
            connection = cast("asyncio.Protocol", self)
            view = self._reader.body.missing_view
            self._body_receiver = BodyReceiver(connection, self._on_body_received, view)
            self._set_protocol(transport, self._body_receiver)

    def _set_protocol(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        if transport.is_closing():
            return
        # A transport checks its protocol's type only when it begins to read, so reading pauses
        # during the change.
        if self._reading:
            transport.pause_reading()
        transport.set_protocol(protocol)
        if self._reading:
            transport.resume_reading()

    def _close(self, transport: asyncio.Transport) -> None:
        if self._eof_received or not self._reader.rejected:
            transport.close()
            return
        # Closing a socket with unread bytes resets the connection, and the client would lose the
        # response.
        self._lingering = True
        if transport.can_write_eof():
            transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        self._loop.call_later(self._limits.linger_s, transport.close)

    def _write_probe(self) -> bool:
        """Probe whether a client that sent FIN still waits. Return False if no call is left."""
        in_flight = self._responses.in_flight
        if self._transport is None or not in_flight:
            return False
        in_flight[0].write_probe(self._transport.write)
        return True

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that are in the transport's write buffer."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def close_if_silent(self, now: float) -> None:
        """Close the connection if the client has sent nothing for too long."""
        if self._account.unread_bytes:
            self._count_unread()
        liveness, reader = self._liveness, self._reader
        silent_s = liveness.silent_s(now)
        if self._responses.busy or not self._reading or self._transport is None:
            # The client waits for the gateway, or does not read. The server's stall detection
            # covers the latter.
            liveness.expect_nothing()
        elif self._responses.closing or reader.call is None:
            if silent_s > self._limits.idle_timeout_s:
                # close() would wait for a client that does not read its responses.
                self._transport.abort()
        elif liveness.is_overdue(now, reader.received_body_bytes):
            reader.reject(408, "the request did not arrive in time")

    def refuse_requests(self, message: str) -> None:
        """Respond to every request with status 503 and this message."""
        self._responses.refusal = message

    def close_after_next_response(self) -> None:
        """Send `Connection: close` with the next response whose head has not been made."""
        self._responses.close_after_next()

    def close_after_in_flight(self) -> None:
        """Accept no further request, and close once all requests in flight are responded to."""
        self._responses.closing = True
        self._update_transport()

    def abort(self) -> None:
        """Close the connection at once, without sending what is left."""
        if self._transport is not None:
            self._transport.abort()
