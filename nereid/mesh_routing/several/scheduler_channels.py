"""Channels to a mesh's schedulers, one per address. Links and control calls share them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nereid.mesh_routing.access import dial_scheduler
from nereid.mesh_routing.several.mesh_router import MeshRouter
from nereid.rpc.net.scheduler_addresses import watch_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from nereid.mesh_routing.router.pending_requests import TensorSharing
    from nereid.mesh_routing.router.route import OpenLink
    from nereid.mesh_routing.router.router import Callbacks, Router
    from nereid.rpc import Channel
    from nereid.rpc.net.scheduler_addresses import AddressSpec


class SchedulerChannels:
    """MeshAccess over channels, within one event loop and for one router."""

    def __init__(
        self,
        specs: Iterable[AddressSpec],
        open_channel: Callable[[str], Channel],
        domain: str = "",
        *,
        has_access_control: bool = False,
    ) -> None:
        """Set up the access. domain: shm_namespace() of nereid.shm.segments.

        has_access_control: as in dial_scheduler().
        """
        self._specs = list(specs)
        self._open_channel = open_channel
        self._domain = domain
        self._has_access_control = has_access_control
        self._channels: dict[str, Channel] = {}
        self._live_addresses: Callable[[], list[str]] = list
        self._tasks: set[asyncio.Task[None]] = set()

    def channels(self) -> list[Channel]:
        """Return channels for a call that any scheduler can serve, connected ones first."""
        addresses = dict.fromkeys([*self._live_addresses(), *self._channels])
        return [self._channels[address] for address in addresses if address in self._channels]

    def make_router(
        self, tensors: TensorSharing, reconnect_limit_s: float, callbacks: Callbacks
    ) -> Router:
        """Return a router among all schedulers."""
        return MeshRouter(self, tensors, reconnect_limit_s, callbacks)

    def watch(
        self,
        on_addresses: Callable[[list[str]], None],
        live_addresses: Callable[[], list[str]],
    ) -> None:
        """Report the addresses from now on, and use the live addresses to order channels."""
        self._live_addresses = live_addresses
        self._run(self._watch(on_addresses))

    def open_link(self, address: str) -> OpenLink:
        """Open a channel to an address; return a function that opens a link over the channel."""
        channel = self._channels[address] = self._open_channel(address)
        return dial_scheduler(channel, self._domain, has_access_control=self._has_access_control)

    def close_channel(self, address: str) -> None:
        """Close the channel to an address."""
        self._run(self._channels.pop(address).close())

    async def close(self) -> None:
        """Close all channels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _watch(self, on_addresses: Callable[[list[str]], None]) -> None:
        async for addresses in watch_addresses(self._specs):
            on_addresses(addresses)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
