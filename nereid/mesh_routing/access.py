"""Access to the schedulers of a mesh, whether it has one or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nereid import rpc
from nereid.core.methods import (
    ACCESS_CONTROL_KEY,
    INFER_PATH,
    MODEL_CALLS_KEY,
    SHM_NAMESPACE_KEY,
)
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.mesh_routing.router.only_scheduler import OnlySchedulerRouter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.mesh_routing.router.pending_requests import TensorSharing
    from nereid.mesh_routing.router.route import OpenLink, SchedulerLink
    from nereid.mesh_routing.router.router import Callbacks, Router


class MeshAccess(Protocol):
    """Access to the schedulers, for one router and for control calls."""

    def channels(self) -> Sequence[rpc.Channel]:
        """Return channels for a call that any scheduler can serve, the best channel first."""

    def make_router(
        self, tensors: TensorSharing, reconnect_limit_s: float, callbacks: Callbacks
    ) -> Router:
        """Return a router. reconnect_limit_s: maximum wait of a request for a scheduler."""


class OneScheduler:
    """MeshAccess for a mesh with one scheduler, whose address never changes."""

    def __init__(self, open_link: OpenLink, channel: rpc.Channel) -> None:
        self._open_link = open_link
        self._channels = (channel,)

    def channels(self) -> Sequence[rpc.Channel]:
        """Return the channel to the only scheduler."""
        return self._channels

    def make_router(
        self, tensors: TensorSharing, reconnect_limit_s: float, callbacks: Callbacks
    ) -> Router:
        """Return a router to the only scheduler."""
        return OnlySchedulerRouter(self._open_link, tensors, reconnect_limit_s, callbacks)


class _LinkCodec:
    def __init__(self) -> None:
        requests = RequestCodec()
        self.size_bytes, self.encode = requests.size_bytes, requests.encode
        self.decode = ResponseCodec().decode


def dial_scheduler(
    channel: rpc.Channel,
    domain: str = "",
    *,
    for_models: bool = False,
    has_access_control: bool = False,
) -> OpenLink:
    """Return a function that opens a link over a channel and redials it until it is closed.

    domain: text that identifies this process's shared memory. for_models: true if models make the
    requests; these are not sent again when the link breaks. has_access_control: true if clients'
    rights are checked.
    """
    metadata = [(SHM_NAMESPACE_KEY, domain)]
    if for_models:
        metadata.append((MODEL_CALLS_KEY, "1"))
    if has_access_control:
        metadata.append((ACCESS_CONTROL_KEY, "1"))

    def open_link(**callbacks: Any) -> SchedulerLink:
        return rpc.dial_link(channel, INFER_PATH, _LinkCodec(), metadata=metadata, **callbacks)

    return open_link
