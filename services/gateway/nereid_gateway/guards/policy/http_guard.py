"""Guard in front of the HTTP front. It refuses calls that the port's policy does not permit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache
from nereid.rpc.net.limits.budget import Owner
from nereid_gateway.core.access.refusal import CallRefused, Reason
from nereid_gateway.core.retry_hints import exact_line
from nereid_gateway.core.routes import resolve
from nereid_gateway.server.call import JSON, TEXT
from nereid_gateway.server.limits import RequestRejected

if TYPE_CHECKING:
    from nereid_gateway.core.access.refusal import Refusal
    from nereid_gateway.guards.auth.access import Caller
    from nereid_gateway.guards.policy.call_policy import CallPolicy, HeaderRule
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.call import BodyBuffer, HttpCall
    from nereid_gateway.server.ordered_responses import Dispatch

_MAX_TARGETS: Final = 1024
_MAX_TARGET_BYTES: Final = 1024
# If a refused call's body is larger, it is not read, and the connection is closed.
_LARGE_BODY_BYTES: Final = 65536

_STATUSES: Final = {
    Reason.NO_CREDENTIALS: 401,
    Reason.INVALID_CREDENTIALS: 401,
    Reason.NOT_PERMITTED: 403,
    Reason.RATE: 429,
    Reason.CONCURRENCY: 429,
    Reason.ATTEMPTS: 429,
    Reason.RESTRICTED: 403,
    Reason.CLOSED: 403,
}
# Triton refuses calls for these reasons too, in plain text.
_PLAIN_TEXT: Final = frozenset({Reason.RESTRICTED, Reason.CLOSED})
_CHALLENGES: Final = {
    Reason.NO_CREDENTIALS: b'WWW-Authenticate: Bearer realm="nereid"\r\n',
    Reason.INVALID_CREDENTIALS: (
        b'WWW-Authenticate: Bearer realm="nereid", error="invalid_token"\r\n'
    ),
}


class _Target(NamedTuple):
    api: str | None
    model: str
    rule: HeaderRule | None
    model_in_body: bool


class HttpGuard:
    """Dispatches permitted calls to the front."""

    def __init__(self, dispatch: Dispatch, allocate_body: AllocateBody, policy: CallPolicy) -> None:
        self._dispatch = dispatch
        self._allocate_body = allocate_body
        self._policy = policy
        self._targets: BoundedCache[bytes, _Target] = BoundedCache(_MAX_TARGETS, _MAX_TARGET_BYTES)

    def __call__(self, call: HttpCall) -> None:
        """Dispatch a call if it is permitted; otherwise respond with its refusal."""
        try:
            caller = self._admit(call)
            if caller is not None:
                caller.count_request()
                usage = caller.principal.usage
                usage.in_flight += 1
                call.on_done = usage.release
                call.sender = Owner(caller.principal, call.account)
                target = self._target(call)
                if target.model_in_body and target.api is not None:
                    call.check_model = partial(caller.check_rights, target.api)
        except CallRefused as refused:
            status, message, lines = response_of(refused.refusal)
            content_type = TEXT if refused.refusal.reason in _PLAIN_TEXT else JSON
            call.fail(status, message, content_type, extra=lines)
        else:
            self._dispatch(call)

    def allocate_body(self, call: HttpCall, size_bytes: int) -> BodyBuffer | None:
        """Return a buffer or None. A refused call with a large body raises RequestRejected."""
        if size_bytes > _LARGE_BODY_BYTES:
            try:
                self._admit(call)
            except CallRefused as refused:
                if refused.refusal.reason not in _PLAIN_TEXT:
                    raise RequestRejected(*response_of(refused.refusal)) from refused
        return self._allocate_body(call, size_bytes)

    def _admit(self, call: HttpCall) -> Caller | None:
        target = self._target(call)
        return self._policy.admit(
            target.api, target.rule, call.headers.get, call.peer, target.model
        )

    def _target(self, call: HttpCall) -> _Target:
        return self._targets.get(call.target) or self._resolve(call.target)

    def _resolve(self, target: bytes) -> _Target:
        route = resolve(target)
        endpoint = route.endpoint
        api = endpoint.api or None
        rule = self._policy.rule_of(api, changes=endpoint.is_control)
        return self._targets.remember(
            target, _Target(api, route.model, rule, endpoint.model_in_body)
        )


def response_of(refusal: Refusal) -> tuple[int, str, bytes]:
    """Return the status, the message and the header lines of a refused call's response."""
    lines = _CHALLENGES.get(refusal.reason, b"")
    if refusal.retry_after_s:
        lines += exact_line(refusal.retry_after_s)
    return _STATUSES[refusal.reason], refusal.message, lines
