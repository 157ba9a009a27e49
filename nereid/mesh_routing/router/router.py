"""Interface of both routers: the one to a mesh's only scheduler, and the one among several."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import Notice
    from nereid.mesh_routing.router.pending_requests import PendingRequests


class Callbacks(NamedTuple):
    """Functions that a router calls. on_link_lost gets the name of the scheduler."""

    on_notice: Callable[[Notice], None]
    on_link_lost: Callable[[str], None]


class Router(Protocol):
    """Sends requests to the schedulers, and delivers each response exactly once.

    Requests wait up to a limit while no scheduler is connected. After a cancellation nothing is
    delivered.
    """

    pending: PendingRequests
    # Number of connected schedulers.
    links_up: int

    def open(self) -> None:
        """Open the links, unless they are open or closed; call this from the event loop."""

    def close(self, reason: NereidError | None = None) -> None:
        """Close the links. Pending requests fail with the reason, and new requests are refused."""
