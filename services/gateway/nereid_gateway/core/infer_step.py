"""Interface of the steps of the gateway's data plane.

A step passes a request on to the next step's `infer`, and may inspect the responses. GatewayService
builds the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import ModelShadows
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle

    Infer = Callable[[ClientRequest, OnResponse], RequestHandle]


class InferStep(Protocol):
    """Step of the data plane."""

    def infer(self, request: ClientRequest, on_response: OnResponse, /) -> RequestHandle:
        """Pass a request on to the next step.

        on_response: called with each response, up to the first one without `more`. The first call
        may come before this function returns.
        """


class ShadowCopies(Protocol):
    """Interface of what copies requests for models' shadows."""

    def set_shadows(self, notice: ModelShadows, send: Infer) -> bool:
        """Set the shadows; return whether there is any. send: sends a copy."""

    def watch(self, request: ClientRequest, on_response: OnResponse) -> OnResponse:
        """Return what gets a request's responses in place of on_response."""
