"""Interface of the steps of the gateway's data plane.

A step gets a request by its method `infer`, on the request's way to the scheduler. It may inspect
the responses on their way back. Each step is constructed with the `infer` of the next step.
GatewayService builds the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferRequest, InferResponse

    OnResponse = Callable[[InferResponse], None]
    Infer = Callable[[InferRequest, OnResponse], "RequestHandle"]


class RequestHandle(Protocol):
    """Handle by which the sender of a request controls it."""

    def cancel(self) -> None:
        """Deliver no further response, because the client has disconnected.

        The call has no effect after the last response.
        """

    def set_flow(self, *, paused: bool) -> None:
        """Pause the responses while the client cannot keep up with them, or let them continue."""


class InferStep(Protocol):
    """Step of the data plane."""

    def infer(self, request: InferRequest, on_response: OnResponse, /) -> RequestHandle:
        """Pass a request on to the next step.

        on_response: called with each response, up to the first one without `more`. The first call
        may come before this function returns.
        """
