"""Interface of a submitted request: what its sender may do, and how responses are delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferResponse

    OnResponse = Callable[[InferResponse], None]


class RequestHandle(Protocol):
    """Handle by which the sender of a request controls it."""

    def cancel(self) -> None:
        """Deliver no further response. After the last response, this has no effect."""

    def set_flow(self, *, paused: bool) -> None:
        """Pause the responses, or let them continue."""
