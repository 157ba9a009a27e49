"""The client for gRPC streams (ModelStreamInfer): each connection has one stream for requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.client_connection import ClientStream
from nereid.rpc.grpc.compression import compress
from nereid.rpc.grpc.messages import send_message
from nereid_perf.wire.client import PendingRequest
from nereid_perf.wire.grpc_connections import GrpcConnections, block_of
from nereid_perf.wire.stream_responses import (
    infer_response,
    read_response,
    request_suffix,
    server_timing,
)

if TYPE_CHECKING:
    from nereid.rpc.grpc.status import RpcError
    from nereid_perf.plan import Plan
    from nereid_perf.request import Request
    from nereid_perf.wire.client import OnEnd
    from nereid_perf.wire.grpc_connections import GrpcConnection

_PATH: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_ENDED: Final = "the server ended the stream"


class GrpcStreamClient:
    """A client for requests with one response each, or with any number from decoupled models."""

    def __init__(self, plan: Plan, on_end: OnEnd) -> None:
        if plan.cancel_percent:
            # Cancelling a stream cancels all of its requests, so each gets its own stream.
            plan = replace(plan, streams_per_connection=1)
        self.block = block_of(plan, _PATH)
        self.compression = plan.compression
        self.decoupled = plan.decoupled
        self.keeps_messages = plan.checks_responses and not plan.decoupled
        self.keeps_timings = plan.server_timing
        self.numbers = count()
        self.connections = GrpcConnections(plan, on_end, self._new_carrier)

    async def open(self, in_flight: int) -> None:
        """Open connections for this number of requests in flight. May raise OSError."""
        await self.connections.open(in_flight)

    def send(self, request: Request, intended_ns: int) -> PendingRequest:
        """Send a request at once, or as soon as a stream has a slot."""
        pending = PendingRequest(request, intended_ns)
        self.connections.send(pending)
        return pending

    def flush(self) -> None:
        """Do nothing: connections write at the end of the event loop's turn."""

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request; if it has been sent, cancel its stream."""
        if not self.connections.forget(pending):
            carrier = pending.carrier.carrier
            assert isinstance(carrier, _Stream), "it is another client's"
            carrier.cancel(pending)

    async def close(self) -> None:
        """Close all connections."""
        await self.connections.close()

    def _new_carrier(self, connection: GrpcConnection) -> _Stream:
        return _Stream(self, connection)


class _Stream:
    """The stream of a connection; when it has ended, another stream is opened."""

    def __init__(self, client: GrpcStreamClient, connection: GrpcConnection) -> None:
        self._client = client
        self._connection = connection
        self._stream: ClientStream | None = None
        self._pending: dict[bytes, PendingRequest] = {}

    def begin(self, pending: PendingRequest) -> None:
        client, connection = self._client, self._connection.connection
        stream = self._stream
        if stream is None:
            stream = self._stream = ClientStream(client.block, self._on_message, self._on_close)
            connection.start(stream)
        key, suffix = request_suffix(next(client.numbers), decoupled=client.decoupled)
        self._pending[key] = pending
        message = pending.request.message + suffix
        if client.compression != "none":
            message = compress(client.compression, (message,))
        pending.sent_ns = monotonic_ns()
        send_message(connection.sender, stream, message, int(client.compression != "none"))

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request, and its stream if no other request is left on it."""
        for key, other in self._pending.items():
            if other is pending:
                del self._pending[key]
                break
        if not self._pending and self._stream is not None:
            stream, self._stream = self._stream, None
            stream.cancel()
        self._client.connections.on_slot(self._connection)

    def on_connection_lost(self) -> None:
        """Do nothing: the stream was closed."""

    def _on_message(self, message: bytes) -> None:
        now_ns = monotonic_ns()
        response = read_response(message, decoupled=self._client.decoupled)
        key = response.key
        if response.error and key not in self._pending:
            # Some servers send errors without an id. Take the oldest request in flight.
            key = next(iter(self._pending), b"")
        pending = self._pending.get(key)
        if pending is None:
            # The request was cancelled or has failed.
            return
        if not response.is_empty:
            pending.on_response(now_ns)
            if self._client.keeps_messages:
                pending.message = infer_response(message)
        if response.is_last:
            if self._client.keeps_timings:
                pending.server_timing = server_timing(message)
            pending.last_ns = pending.last_ns or now_ns
            del self._pending[key]
            self._end(pending, response.error)

    def _on_close(self, error: RpcError | None) -> None:
        self._stream = None
        pending, self._pending = self._pending, {}
        now_ns = monotonic_ns()
        for request in pending.values():
            request.last_ns = now_ns
            self._end(request, str(error) if error is not None else _ENDED)

    def _end(self, pending: PendingRequest, error: str) -> None:
        connections = self._client.connections
        connections.on_slot(self._connection)
        connections.on_end(pending, error)
