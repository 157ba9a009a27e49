"""Access to the schedulers of a mesh, whether it has one or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid import rpc
from nereid.core.methods import INFER_PATH, MODEL_CALLS_KEY, SHM_NAMESPACE_KEY
from nereid.core.wire.codecs import RequestCodec, ResponseCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.mesh_routing.router.route import OpenLink, SchedulerLink


class OneScheduler:
    """MeshAccess for a mesh with one scheduler, whose address never changes."""

    def __init__(self, open_link: OpenLink, channel: rpc.Channel) -> None:
        self._open_link = open_link
        self._channels = (channel,)

    def channels(self) -> Sequence[rpc.Channel]:
        """Return the channel to the only scheduler."""
        return self._channels

    def watch(self, on_addresses: Callable[[list[str]], None], _: object) -> None:
        """Report the only scheduler's address immediately. The address is the empty text."""
        on_addresses([""])

    def open_link(self, _: str) -> OpenLink:
        """Return the function that opens the link to the only scheduler."""
        return self._open_link

    def close_channel(self, address: str) -> None:
        """Raise an error: the address never disappears, so nobody calls this."""
        raise AssertionError(address)


class _LinkCodec:
    def __init__(self) -> None:
        requests = RequestCodec()
        self.size_bytes, self.encode = requests.size_bytes, requests.encode
        self.decode = ResponseCodec().decode


def dial_scheduler(channel: rpc.Channel, domain: str = "", *, for_models: bool = False) -> OpenLink:
    """Return a function that opens a link over a channel and redials it until it is closed.

    domain: text that identifies this process's shared memory. for_models: true if models make the
    requests; these are not sent again when the link breaks.
    """
    metadata = [(SHM_NAMESPACE_KEY, domain)]
    if for_models:
        metadata.append((MODEL_CALLS_KEY, "1"))

    def open_link(**callbacks: Any) -> SchedulerLink:
        return rpc.dial_link(channel, INFER_PATH, _LinkCodec(), metadata=metadata, **callbacks)

    return open_link
