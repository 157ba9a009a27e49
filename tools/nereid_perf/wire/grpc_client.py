"""The client for unary gRPC calls: several connections with several streams each."""

# layout: compiled

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.rpc.grpc.client_connection import ClientStream
from nereid.rpc.grpc.compression import compress
from nereid.rpc.grpc.messages import send_message
from nereid_perf.server_stats.server_timing import HEADER
from nereid_perf.wire.client import PendingRequest
from nereid_perf.wire.grpc_connections import GrpcConnections, block_of
from nereid_perf.wire.kept_bytes import KeptBytes

if TYPE_CHECKING:
    from nereid.rpc.grpc.status import RpcError
    from nereid_perf.plan import Plan
    from nereid_perf.request import Request
    from nereid_perf.wire.client import OnEnd
    from nereid_perf.wire.grpc_connections import GrpcConnection

_PATH: Final = "/inference.GRPCInferenceService/ModelInfer"


class GrpcClient:
    """A client that makes a gRPC call for each request."""

    def __init__(self, plan: Plan, on_end: OnEnd) -> None:
        self.block = block_of(plan, _PATH)
        self.keeps_messages = plan.checks_responses
        self.keeps_timings = plan.server_timing
        self.compressed = int(plan.compression != "none")
        self.connections = GrpcConnections(plan, on_end, self._new_carrier)
        self.message_of = _plain_message
        if self.compressed:
            kept_bytes = KeptBytes(lambda request: compress(plan.compression, (request.message,)))
            self.message_of = kept_bytes.bytes_of

    async def open(self, in_flight: int) -> None:
        """Open connections for this number of requests in flight. May raise OSError."""
        await self.connections.open(in_flight)

    def send(self, request: Request, intended_ns: int) -> PendingRequest:
        """Send a request at once, or as soon as a stream is free."""
        pending = _UnaryCall(request, intended_ns, self)
        self.connections.send(pending)
        return pending

    def flush(self) -> None:
        """Do nothing: connections write at the end of the event loop's turn."""

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel the request's call."""
        if not self.connections.forget(pending):
            assert isinstance(pending, _UnaryCall), "it is another client's"
            pending.stream.cancel()
            self.connections.on_slot(pending.carrier)

    async def close(self) -> None:
        """Close all connections."""
        await self.connections.close()

    def _new_carrier(self, connection: GrpcConnection) -> _Unary:
        return _Unary(self, connection)


def _plain_message(request: Request) -> bytes:
    return request.message


def _timing_of(outcome: RpcError | None) -> str:
    trailers = () if outcome is None else outcome.trailers
    return ", ".join(str(value) for name, value in trailers if name == HEADER)


class _Unary:
    def __init__(self, client: GrpcClient, connection: GrpcConnection) -> None:
        self._client = client
        self._connection = connection.connection

    def begin(self, pending: PendingRequest) -> None:
        assert isinstance(pending, _UnaryCall), "it is another client's"
        client = self._client
        stream = pending.stream = ClientStream(client.block, pending.on_message, pending.on_close)
        message = client.message_of(pending.request)
        pending.sent_ns = monotonic_ns()
        connection = self._connection
        connection.start(stream)
        send_message(connection.sender, stream, message, client.compressed)
        stream.half_close()

    def on_connection_lost(self) -> None:
        """Do nothing: all streams were closed, and that has ended their calls."""


class _UnaryCall(PendingRequest):
    """The call of one request; `stream` is set when the request is sent."""

    __slots__ = ("_client", "stream")

    stream: ClientStream

    def __init__(self, request: Request, intended_ns: int, client: GrpcClient) -> None:
        super().__init__(request, intended_ns)
        self._client = client

    def on_message(self, message: bytes) -> None:
        self.first_ns = monotonic_ns()
        self.responses += 1
        if self._client.keeps_messages:
            self.message = message

    def on_close(self, error: RpcError | None) -> None:
        self.last_ns = monotonic_ns()
        client = self._client
        if client.keeps_timings:
            self.server_timing = _timing_of(self.stream.outcome)
        connections = client.connections
        connections.on_slot(self.carrier)
        if error is not None:
            text = str(error)
        else:
            text = "" if self.responses == 1 else f"{self.responses} responses to a unary call"
        connections.on_end(self, text)
