"""Network connections of a scheduler. No other module of the scheduler uses sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nereid.mesh_auth.guard import guarded
from nereid.mesh_auth.roles import Role
from nereid.rpc import BackoffOptions, ChannelOptions, Server, ServerOptions, SocketChannel

if TYPE_CHECKING:
    from nereid.rpc import Channel, Handlers
    from nereid_scheduler.settings import Settings

# Short pauses between attempts, so that a peer that starts is found soon.
_PEER_BACKOFF: Final = BackoffOptions(first_s=0.02, largest_s=0.5)


class MeshPorts(Protocol):
    """Interface for the network: a scheduler listens and opens channels only through it."""

    def open_peer(self, address: str) -> Channel:
        """Return a channel to another scheduler."""

    def open_cache(self) -> Channel | None:
        """Return a channel to the cache; `None` if no other process has a cache."""

    async def listen(self, handlers: Handlers) -> list[str]:
        """Serve these handlers; return the addresses to connect to. Raises OSError."""

    async def close(self) -> None:
        """Stop serving."""


class SocketPorts:
    """MeshPorts that use sockets. The addresses are those in the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Server | None = None

    def open_peer(self, address: str) -> SocketChannel:
        """Return a channel to another scheduler."""
        settings = self._settings
        options = settings.with_keepalive(ChannelOptions(backoff=_PEER_BACKOFF), replaceable=True)
        return SocketChannel(address, settings.mesh_channel(address, Role.SCHEDULER, options))

    def open_cache(self) -> SocketChannel | None:
        """Return a channel to the cache; `None` if the settings have no address of a cache."""
        settings, address = self._settings, self._settings.cache_address
        if address is None:
            return None
        options = settings.with_keepalive(ChannelOptions())
        return SocketChannel(address, settings.mesh_channel(address, Role.SCHEDULER, options))

    async def listen(self, handlers: Handlers) -> list[str]:
        """Serve these handlers; return the addresses, with port 0 replaced by the actual port."""
        settings = self._settings
        rules = settings.mesh_guard(executor_control=settings.allow_executor_control)
        options = settings.with_keepalive(ServerOptions())
        self._server = Server(guarded(handlers, rules), options)
        return [
            await self._server.listen(
                address, settings.mesh_tls_server(address), private=settings.mesh_private
            )
            for address in settings.scheduler_address
        ]

    async def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.close()
