"""Nereid's own gRPC engine. The names below are imported only when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nereid.rpc.grpc.blocking_stream import BlockingStream, open_for_other_process
    from nereid.rpc.grpc.call import Call
    from nereid.rpc.grpc.channel import Channel, ChannelOptions, SocketChannel, StreamHandle
    from nereid.rpc.grpc.client_connection import ClientStream
    from nereid.rpc.grpc.handlers import AsyncUnaryHandler, Handlers, StreamHandler, UnaryHandler
    from nereid.rpc.grpc.server import Engine, Server, ServerOptions
    from nereid.rpc.grpc.status import (
        ConnectionLostError,
        NotConnectedError,
        NotProcessedError,
        RpcError,
        Status,
    )
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
    "Engine",
    "Handlers",
    "Link",
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
    "open_for_other_process",
]

_NAMES = {
    "grpc.blocking_stream": ("BlockingStream", "open_for_other_process"),
    "grpc.call": ("Call",),
    "grpc.channel": ("Channel", "ChannelOptions", "SocketChannel", "StreamHandle"),
    "grpc.client_connection": ("ClientStream",),
    "grpc.handlers": ("AsyncUnaryHandler", "Handlers", "StreamHandler", "UnaryHandler"),
    "grpc.server": ("Engine", "Server", "ServerOptions"),
    "grpc.status": (
        *("ConnectionLostError", "NotConnectedError", "NotProcessedError", "RpcError", "Status"),
    ),
    "http2.sender": ("LOW_WATER_BYTES",),
    "links.link": ("Link",),
    "links.memory_link": ("memory_links",),
    "links.stream_link": ("Codec", "accept_link", "dial_link"),
    "net.backoff": ("BackoffOptions",),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
