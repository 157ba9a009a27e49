"""How a scheduler is reached, and how it reaches other schedulers and the cache: over sockets.

All that the scheduler has of the network is in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nereid.mesh_auth.guard import guarded
from nereid.mesh_auth.roles import Role
from nereid.rpc import BackoffOptions, ChannelOptions, Server, ServerOptions, SocketChannel

if TYPE_CHECKING:
    from nereid.rpc import Channel, Handlers
    from nereid_scheduler.settings import Settings

# A peer that starts is found soon.
_PEER_BACKOFF: Final = BackoffOptions(first_s=0.02, largest_s=0.5)


class MeshPorts(Protocol):
    """The network, as a scheduler needs it."""

    def open_peer(self, address: str) -> Channel:
        """To another scheduler."""

    def open_cache(self) -> Channel | None:
        """To the cache; None: there is none elsewhere."""

    async def listen(self, handlers: Handlers) -> list[str]:
        """Serve; where. Raises OSError."""

    async def close(self) -> None:
        """Serve no more."""


class SocketPorts:
    """Where the settings say."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Server | None = None

    def open_peer(self, address: str) -> SocketChannel:
        """As MeshPorts."""
        settings = self._settings
        options = settings.with_keepalive(ChannelOptions(backoff=_PEER_BACKOFF), replaceable=True)
        return SocketChannel(address, settings.mesh_channel(address, Role.SCHEDULER, options))

    def open_cache(self) -> SocketChannel | None:
        """As MeshPorts."""
        settings, address = self._settings, self._settings.cache_address
        if address is None:
            return None
        options = settings.with_keepalive(ChannelOptions())
        return SocketChannel(address, settings.mesh_channel(address, Role.SCHEDULER, options))

    async def listen(self, handlers: Handlers) -> list[str]:
        """As MeshPorts; port 0 is replaced by the one that the system chose."""
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
        """As MeshPorts."""
        if self._server is not None:
            await self._server.close()
