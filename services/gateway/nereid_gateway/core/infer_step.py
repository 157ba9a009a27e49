"""Interface of the steps of the gateway's data plane.

A step passes a request on to the next step's `infer`, and may inspect the responses. GatewayService
builds the chain.
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
        """Deliver no further response. After the last response, this has no effect."""

    def set_flow(self, *, paused: bool) -> None:
        """Pause the responses, or let them continue."""


class InferStep(Protocol):
    """Step of the data plane."""

    def infer(self, request: InferRequest, on_response: OnResponse, /) -> RequestHandle:
        """Pass a request on to the next step.

        on_response: called with each response, up to the first one without `more`. The first call
        may come before this function returns.
        """
