"""What a service is given of the mesh's schedulers, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid import rpc
from nereid.core.methods import INFER_PATH, MODEL_CALLS_KEY, SHM_NAMESPACE_KEY
from nereid.core.wire.codecs import RequestCodec, ResponseCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.mesh_routing.router.route import OpenLink, SchedulerLink


class OneScheduler:
    """A MeshAccess whose only address never changes."""

    def __init__(self, open_link: OpenLink, channel: rpc.Channel) -> None:
        self._open_link = open_link
        self._channels = (channel,)

    def channels(self) -> Sequence[rpc.Channel]:
        return self._channels

    def watch(self, on_addresses: Callable[[list[str]], None], _: object) -> None:
        on_addresses([""])

    def open_link(self, _: str) -> OpenLink:
        return self._open_link

    def close_channel(self, address: str) -> None:
        """Never called: the address stays."""
        raise AssertionError(address)


class _LinkCodec:
    """Requests to frames, frames to responses."""

    def __init__(self) -> None:
        requests = RequestCodec()
        self.size_bytes, self.encode = requests.size_bytes, requests.encode
        self.decode = ResponseCodec().decode


def dial_scheduler(channel: rpc.Channel, domain: str = "", *, for_models: bool = False) -> OpenLink:
    """A link over a channel, which is dialled again for as long as it is open.

    domain: of the memory that this process shares (nereid.shm.segments.shm_namespace). for_models:
    requests are calls of models, and are not sent again when the link breaks.
    """
    metadata = [(SHM_NAMESPACE_KEY, domain)]
    if for_models:
        metadata.append((MODEL_CALLS_KEY, "1"))

    def open_link(**callbacks: Any) -> SchedulerLink:
        return rpc.dial_link(channel, INFER_PATH, _LinkCodec(), metadata=metadata, **callbacks)

    return open_link
