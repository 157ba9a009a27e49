"""Nereid's gRPC engine: HTTP/2 and gRPC on the wire, server and clients, and links on top.

Knows nothing of serving, models or tensors. The names below are imported when they are first used,
so that a process that only reads an address or a certificate does not load the whole engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nereid.rpc.grpc.blocking_stream import BlockingStream
    from nereid.rpc.grpc.call import Call
    from nereid.rpc.grpc.channel import Channel, ChannelOptions, SocketChannel, StreamHandle
    from nereid.rpc.grpc.client_connection import ClientStream
    from nereid.rpc.grpc.handlers import AsyncUnaryHandler, Handlers, StreamHandler, UnaryHandler
    from nereid.rpc.grpc.in_process_channel import LocalChannel
    from nereid.rpc.grpc.server import Server, ServerOptions
    from nereid.rpc.grpc.status import (
        ConnectionLostError,
        NotConnectedError,
        NotProcessedError,
        RpcError,
        Status,
    )
    from nereid.rpc.grpc.thread_streams import ThreadStream, ThreadStreams
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
    "ConnectionLostError",
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
    "ThreadStream",
    "ThreadStreams",
    "UnaryHandler",
    "accept_link",
    "dial_link",
    "memory_links",
]

_MODULES = {
    "AsyncUnaryHandler": "nereid.rpc.grpc.handlers",
    "BackoffOptions": "nereid.rpc.net.backoff",
    "BlockingStream": "nereid.rpc.grpc.blocking_stream",
    "Call": "nereid.rpc.grpc.call",
    "Channel": "nereid.rpc.grpc.channel",
    "ChannelOptions": "nereid.rpc.grpc.channel",
    "ClientStream": "nereid.rpc.grpc.client_connection",
    "Codec": "nereid.rpc.links.stream_link",
    "Handlers": "nereid.rpc.grpc.handlers",
    "LOW_WATER_BYTES": "nereid.rpc.http2.sender",
    "Link": "nereid.rpc.links.link",
    "LocalChannel": "nereid.rpc.grpc.in_process_channel",
    "ConnectionLostError": "nereid.rpc.grpc.status",
    "NotConnectedError": "nereid.rpc.grpc.status",
    "NotProcessedError": "nereid.rpc.grpc.status",
    "RpcError": "nereid.rpc.grpc.status",
    "Server": "nereid.rpc.grpc.server",
    "ServerOptions": "nereid.rpc.grpc.server",
    "SocketChannel": "nereid.rpc.grpc.channel",
    "Status": "nereid.rpc.grpc.status",
    "StreamHandle": "nereid.rpc.grpc.channel",
    "StreamHandler": "nereid.rpc.grpc.handlers",
    "ThreadStream": "nereid.rpc.grpc.thread_streams",
    "ThreadStreams": "nereid.rpc.grpc.thread_streams",
    "UnaryHandler": "nereid.rpc.grpc.handlers",
    "accept_link": "nereid.rpc.links.stream_link",
    "dial_link": "nereid.rpc.links.stream_link",
    "memory_links": "nereid.rpc.links.memory_link",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
