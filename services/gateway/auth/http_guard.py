"""Authentication in front of the HTTP front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.bounded_cache import BoundedCache
from nereid.services.gateway.auth.authenticator import Credentials
from nereid.services.gateway.auth.grant import UNGROUPED
from nereid.services.gateway.auth.refusal import CallRefused, Reason
from nereid.services.gateway.http.routes import RouteKind, resolve
from nereid.services.gateway.http.server.limits import RequestRejected
from nereid.services.gateway.policy.api_groups import ROUTES_BY_API
from nereid.services.gateway.retry_hints import exact_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.services.gateway.auth.access import AccessControl, Caller
    from nereid.services.gateway.auth.refusal import Refusal
    from nereid.services.gateway.http.server.body import AllocateBody
    from nereid.services.gateway.http.server.call import BodyBuffer, HttpCall

_API_BY_ROUTE: Final = {kind: api for api, kinds in ROUTES_BY_API.items() for kind in kinds}
_MAX_TARGETS: Final = 1024
_MAX_TARGET_BYTES: Final = 1024
# Bodies past this are not waited for if they are refused anyway; the connection is closed instead.
_LARGE_BODY_BYTES: Final = 65536

_STATUSES: Final = {
    Reason.NO_CREDENTIALS: 401,
    Reason.INVALID_CREDENTIALS: 401,
    Reason.NOT_PERMITTED: 403,
    Reason.RATE: 429,
    Reason.CONCURRENCY: 429,
    Reason.ATTEMPTS: 429,
}
_CHALLENGES: Final = {
    Reason.NO_CREDENTIALS: b'WWW-Authenticate: Bearer realm="nereid"\r\n',
    Reason.INVALID_CREDENTIALS: (
        b'WWW-Authenticate: Bearer realm="nereid", error="invalid_token"\r\n'
    ),
}


class AuthenticatedHttp:
    """Dispatches the calls that are permitted to the front."""

    def __init__(
        self,
        dispatch: Callable[[HttpCall], None],
        allocate_body: AllocateBody,
        access: AccessControl,
    ) -> None:
        self._dispatch = dispatch
        self._allocate_body = allocate_body
        self._access = access
        # The group of APIs and the model that a target names; no group: there is no such API.
        self._targets: BoundedCache[bytes, tuple[str | None, str]] = BoundedCache(
            _MAX_TARGETS, _MAX_TARGET_BYTES
        )

    def __call__(self, call: HttpCall) -> None:
        try:
            caller = self._authorize(call)
            if caller is not None:
                self._access.count_request(caller)
                usage = caller.principal.usage
                usage.in_flight += 1
                call.on_done = usage.release
                call.sender = caller.principal
        except CallRefused as refused:
            status, message, lines = _response(refused.refusal)
            call.fail(status, message, extra=lines)
        else:
            self._dispatch(call)

    def allocate_body(self, call: HttpCall, size_bytes: int) -> BodyBuffer | None:
        """Refuses a large body before it arrives."""
        if size_bytes > _LARGE_BODY_BYTES:
            try:
                self._authorize(call)
            except CallRefused as refused:
                raise RequestRejected(*_response(refused.refusal)) from refused
        return self._allocate_body(call, size_bytes)

    def _authorize(self, call: HttpCall) -> Caller | None:
        """Who sends a permitted call; None: it is for nothing that exists."""
        known = self._targets.get(call.target)
        api, model = self._resolve(call.target) if known is None else known
        if api is None:
            return None
        headers = call.headers
        return self._access.authorize(
            Credentials(headers.get(b"x-api-key"), headers.get(b"authorization"), call.peer),
            api,
            model,
        )

    def _resolve(self, target: bytes) -> tuple[str | None, str]:
        route = resolve(target)
        missing = route.kind is RouteKind.NOT_FOUND
        api = None if missing else _API_BY_ROUTE.get(route.kind, UNGROUPED)
        return self._targets.remember(target, (api, route.model))


def _response(refusal: Refusal) -> tuple[int, str, bytes]:
    """Status, message and further header lines."""
    lines = _CHALLENGES.get(refusal.reason, b"")
    if refusal.retry_after_s:
        lines += exact_line(refusal.retry_after_s)
    return _STATUSES[refusal.reason], refusal.message, lines
