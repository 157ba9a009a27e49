"""Nereid's gRPC engine: HTTP/2 and gRPC on the wire, server and clients, and links on top.

Knows nothing of serving, models or tensors. `grpcio_server.GrpcioServer` is apart, as it alone
needs grpcio.
"""

from nereid.rpc.backoff import BackoffOptions
from nereid.rpc.blocking import BlockingStream
from nereid.rpc.call import AsyncUnaryHandler, Call, Handlers, StreamHandler, UnaryHandler
from nereid.rpc.channel import Channel, ChannelOptions, SocketChannel, StreamHandle
from nereid.rpc.client_connection import ClientStream
from nereid.rpc.links import Codec, Link, accept_link, dial_link, memory_links
from nereid.rpc.local import LocalChannel
from nereid.rpc.sending import LOW_WATER_BYTES
from nereid.rpc.server import Server, ServerOptions
from nereid.rpc.status import NotConnectedError, NotProcessedError, RpcError, Status

__all__ = [
    "LOW_WATER_BYTES",
    "AsyncUnaryHandler",
    "BackoffOptions",
    "BlockingStream",
    "Call",
    "Channel",
    "ChannelOptions",
    "ClientStream",
    "Codec",
    "Handlers",
    "Link",
    "LocalChannel",
    "NotConnectedError",
    "NotProcessedError",
    "RpcError",
    "Server",
    "ServerOptions",
    "SocketChannel",
    "Status",
    "StreamHandle",
    "StreamHandler",
    "UnaryHandler",
    "accept_link",
    "dial_link",
    "memory_links",
]
