"""One step of the gateway's data plane: it takes a request on its way to the scheduler by `infer`,
and may look at the responses on their way back.

A step is constructed with the `infer` of the step behind it; GatewayService builds the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferRequest, InferResponse

    OnResponse = Callable[[InferResponse], None]
    Infer = Callable[[InferRequest, OnResponse], "RequestHandle"]


class RequestHandle(Protocol):
    """A request that was sent, as its sender sees it."""

    def cancel(self) -> None:
        """The client disconnected: deliver no response. Does nothing after the last one."""

    def set_flow(self, *, paused: bool) -> None:
        """The client cannot keep up with the responses, or can again."""


class InferStep(Protocol):
    """One step of the data plane."""

    def infer(self, request: InferRequest, on_response: OnResponse, /) -> RequestHandle:
        """Send a request on; on_response is called for each response until one without `more`,
        possibly before this returns.
        """
