"""Clients' connections over gRPC: each has connections of its own to both servers."""

# layout: compiled

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from nereid_adopt.proxy.grpc_messages import Messages, whole_message
from nereid_adopt.proxy.grpc_server import GrpcServer
from nereid_adopt.proxy.http2_streams import Http2ClientConnection
from nereid_adopt.proxy.http2_transport import StreamProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_adopt.proxy.http2_streams import Http2ServerConnection
    from nereid_adopt.proxy.proxy_stream import Block, ProxyStream, StreamOwner
    from nereid_adopt.proxy.site import Site


class GrpcClient:
    """One client's connection, with connections of its own to both servers.

    make_call: returns the owner of a new stream.
    """

    def __init__(
        self, site: Site, make_call: Callable[[GrpcClient, ProxyStream, Block], StreamOwner]
    ) -> None:
        self.site = site
        self._make_call = make_call
        self.draw = site.traffic.draw_connection()
        self.servers = tuple(
            GrpcServer(address, self._on_connected, tls)
            for address, tls in zip(site.grpc_addresses, site.grpc_tls, strict=True)
        )
        self.tasks: set[asyncio.Task[None]] = set()
        self._protocol: StreamProtocol[Http2ClientConnection] | None = None
        self._found: list[bytes] = []
        self._reader = Messages(self._found.append, site.max_copied_bytes)

    def make_protocol(self) -> StreamProtocol[Http2ClientConnection]:
        """Return the protocol of the client's connection."""
        protocol = StreamProtocol(
            partial(
                Http2ClientConnection,
                on_stream=partial(self._make_call, self),
                on_closed=self._on_closed,
            )
        )
        self._protocol = protocol
        self.site.connections.add(protocol)
        return protocol

    def _on_closed(self) -> None:
        if self._protocol is not None:
            self.site.connections.discard(self._protocol)
        for task in tuple(self.tasks):
            task.cancel()
        for server in self.servers:
            server.close()

    def _on_connected(self, server: Http2ServerConnection) -> None:
        assert self._protocol is not None
        client = self._protocol.connection
        if client.leaving:
            server.writer.abort()
            return
        client.peers.append(server)
        server.peers.append(client)

    def message_of(self, head: Block | None, content: list[bytes]) -> bytes | None:
        """Return the message in the content of a unary call, or `None` if it is damaged."""
        if len(content) == 1:
            message = whole_message(content[0])
            if message is not None:
                return message
        self._found.clear()
        self._reader.begin(head)
        for piece in content:
            self._reader.feed(piece)
        return self._found[0] if len(self._found) == 1 else None

    def spawn(self, work: Any) -> None:
        """Run a coroutine until it ends, or the client's connection does."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
