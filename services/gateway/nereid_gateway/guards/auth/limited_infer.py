"""Inference for one principal. Its requests count as in flight until their last response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.rpc import Status
from nereid.rpc.net.limits.budget import Owner, account_of
from nereid_gateway.core.access.refusal import CallRefused, Reason

if TYPE_CHECKING:
    from nereid_gateway.core.access.principal import Principal
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle
    from nereid_gateway.core.request_head import HeadReader
    from nereid_gateway.guards.auth.access import Caller

STATUSES: Final = {
    Reason.NO_CREDENTIALS: Status.UNAUTHENTICATED,
    Reason.INVALID_CREDENTIALS: Status.UNAUTHENTICATED,
    Reason.NOT_PERMITTED: Status.PERMISSION_DENIED,
    Reason.RATE: Status.RESOURCE_EXHAUSTED,
    Reason.CONCURRENCY: Status.RESOURCE_EXHAUSTED,
    Reason.ATTEMPTS: Status.RESOURCE_EXHAUSTED,
    Reason.RESTRICTED: Status.UNAVAILABLE,
    Reason.CLOSED: Status.PERMISSION_DENIED,
}
_INFERENCE: Final = "inference"


class LimitedInfer:
    """Checks each request against its principal's present grant.

    checks_each_message: rights and rate are checked here. Otherwise the guard has checked them.
    """

    def __init__(
        self,
        infer: Infer,
        caller: Caller,
        models: HeadReader,
        *,
        checks_each_message: bool,
    ) -> None:
        self._infer = infer
        self._caller = caller
        self._models = models
        self._checks_each_message = checks_each_message

    def infer(self, request: ClientRequest, on_response: OnResponse, /) -> RequestHandle:
        """Forward a permitted request, or respond with its refusal."""
        caller = self._caller
        principal = caller.principal
        try:
            if self._checks_each_message or principal.grant.depends_on_model(_INFERENCE):
                model = self._models.model_of(request.head)
                caller.check_rights(_INFERENCE, model)
            if self._checks_each_message:
                caller.count_request()
            else:
                # Other requests may have arrived while this one was decoded.
                caller.check_concurrency()
        except CallRefused as refused:
            return _refuse(request, on_response, refused)
        request.sender = Owner(principal, account_of(request.sender))
        counted = _CountedRequest(principal, on_response)
        counted.handle = self._infer(request, counted.on_response)
        return counted


class _CountedRequest:
    __slots__ = ("_on_response", "_released", "_usage", "handle")

    handle: RequestHandle

    def __init__(self, principal: Principal, on_response: OnResponse) -> None:
        self._usage = principal.usage
        self._usage.in_flight += 1
        self._released = False
        self._on_response = on_response

    def on_response(self, response: InferResponse) -> None:
        if not response.more:
            self._release()
        self._on_response(response)

    def cancel(self) -> None:
        self._release()
        self.handle.cancel()

    def set_flow(self, *, paused: bool) -> None:
        self.handle.set_flow(paused=paused)

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._usage.release()


class _RefusedRequest:
    def cancel(self) -> None:
        """Do nothing, because the request is not pending."""

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing, because there are no further responses."""


_REFUSED: Final = _RefusedRequest()


def _refuse(request: ClientRequest, on_response: OnResponse, refused: CallRefused) -> RequestHandle:
    if request.lease is not None:
        request.lease.free()
    status = STATUSES[refused.refusal.reason]
    on_response(InferResponse(request.id, error=ErrorStatus(status, refused.refusal.message)))
    return _REFUSED
