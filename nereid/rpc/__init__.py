"""Nereid's gRPC engine: HTTP/2 and gRPC on the wire, server and clients, and links on top.

Knows nothing of serving, models or tensors. `grpc.grpcio_engine` is not imported here, as it alone
needs grpcio.
"""

from nereid.rpc.grpc.blocking_stream import BlockingStream
from nereid.rpc.grpc.call import Call
from nereid.rpc.grpc.channel import Channel, ChannelOptions, SocketChannel, StreamHandle
from nereid.rpc.grpc.client_connection import ClientStream
from nereid.rpc.grpc.handlers import AsyncUnaryHandler, Handlers, StreamHandler, UnaryHandler
from nereid.rpc.grpc.in_process_channel import LocalChannel
from nereid.rpc.grpc.server import Server, ServerOptions
from nereid.rpc.grpc.status import NotConnectedError, NotProcessedError, RpcError, Status
from nereid.rpc.http2.sender import LOW_WATER_BYTES
from nereid.rpc.links.link import Link
from nereid.rpc.links.memory_link import memory_links
from nereid.rpc.links.stream_link import Codec, accept_link, dial_link
from nereid.rpc.net.backoff import BackoffOptions

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
