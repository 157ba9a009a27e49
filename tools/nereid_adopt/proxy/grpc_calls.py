"""gRPC calls of one client, by their kind."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_adopt.calls.kinds import CallKind, grpc_call
from nereid_adopt.proxy.stream_calls import StreamCall
from nereid_adopt.proxy.unary_calls import UnaryCall

if TYPE_CHECKING:
    from nereid_adopt.proxy.grpc_client import GrpcClient
    from nereid_adopt.proxy.proxy_stream import Block, ProxyStream


def make_call(client: GrpcClient, stream: ProxyStream, head: Block) -> UnaryCall | StreamCall:
    """Return the owner of a new stream."""
    kind = grpc_call(head.path)
    if kind is CallKind.INFER or kind is CallKind.CHANGE:
        return UnaryCall(client, stream, head, kind)
    return StreamCall(client, stream, head, copied=kind is CallKind.STREAM)
