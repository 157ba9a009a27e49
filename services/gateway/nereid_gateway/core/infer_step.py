"""Interface of the steps of the gateway's data plane.

A step receives a request on its way to the scheduler by `infer`, and may inspect the responses on
their way back. It is constructed with the `infer` of the step behind it; GatewayService builds the
chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferRequest, InferResponse

    OnResponse = Callable[[InferResponse], None]
    Infer = Callable[[InferRequest, OnResponse], "RequestHandle"]


class RequestHandle(Protocol):
    """Request that was sent, as its sender sees it."""

    def cancel(self) -> None:
        """Deliver no further response: the client disconnected. No effect after the last one."""

    def set_flow(self, *, paused: bool) -> None:
        """Pause responses while the client cannot keep up with them, or let them continue."""


class InferStep(Protocol):
    """Step of the data plane."""

    def infer(self, request: InferRequest, on_response: OnResponse, /) -> RequestHandle:
        """Send a request on.

        on_response is called for each response until one without `more`, possibly before this
        returns.
        """
