"""Ports of a scheduler: how it is reached, and how it reaches other schedulers and the cache.

All that the scheduler knows of sockets is in this module. Knows nothing of models and requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nereid.mesh_auth.guard import guarded
from nereid.mesh_auth.roles import Role
from nereid.rpc import BackoffOptions, ChannelOptions, Server, ServerOptions, SocketChannel

if TYPE_CHECKING:
    from nereid.rpc import Channel, Handlers
    from nereid_scheduler.settings import Settings

# The back-off is short, so that a peer that starts is found soon.
_PEER_BACKOFF: Final = BackoffOptions(first_s=0.02, largest_s=0.5)


class MeshPorts(Protocol):
    """The network, as a scheduler needs it."""

    def open_peer(self, address: str) -> Channel:
        """Return a channel to another scheduler."""

    def open_cache(self) -> Channel | None:
        """Return a channel to the cache; `None` if there is none in another process."""

    async def listen(self, handlers: Handlers) -> list[str]:
        """Serve these handlers; return the addresses. Raises OSError."""

    async def close(self) -> None:
        """Stop serving."""


class SocketPorts:
    """MeshPorts over sockets, at the addresses of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Server | None = None

    def open_peer(self, address: str) -> SocketChannel:
        """Return a channel to another scheduler."""
        settings = self._settings
        options = settings.with_keepalive(ChannelOptions(backoff=_PEER_BACKOFF), replaceable=True)
        return SocketChannel(address, settings.mesh_channel(address, Role.SCHEDULER, options))

    def open_cache(self) -> SocketChannel | None:
        """Return a channel to the cache; `None` if there is none in another process."""
        settings, address = self._settings, self._settings.cache_address
        if address is None:
            return None
        options = settings.with_keepalive(ChannelOptions())
        return SocketChannel(address, settings.mesh_channel(address, Role.SCHEDULER, options))

    async def listen(self, handlers: Handlers) -> list[str]:
        """Serve these handlers; return the addresses, with the system's port in place of port 0."""
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
