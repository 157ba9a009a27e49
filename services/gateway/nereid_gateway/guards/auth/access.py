"""Authorization of calls by their credentials. Refusals are counted and logged."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from nereid_gateway.core.access.refusal import NO_CREDENTIALS, CallRefused
from nereid_gateway.guards.auth.authenticator import (
    CREDENTIAL_HEADERS,
    Authenticator,
    Credentials,
)
from nereid_gateway.guards.auth.refusals import AccessRefusals
from nereid_gateway.guards.auth.reload import load_config, watch_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.files.file_watch import FileWatch
    from nereid_gateway.core.access.principal import Principal
    from nereid_gateway.core.access.refusal import Refusal
    from nereid_gateway.guards.auth.authenticator import Text
    from nereid_gateway.guards.auth.reload import LoadedConfig


class Caller(NamedTuple):
    """Principal and address of a call's client, with checks that may still refuse the call."""

    principal: Principal
    peer: str
    access: AccessControl

    def check_rights(self, api: str, model: str) -> None:
        """Raise CallRefused if the principal may not call this group. model: may be empty."""
        refusal = self.principal.check_rights(api, model)
        if refusal is not None:
            # The error asks for credentials, because they might help.
            is_anonymous = self.principal is self.access.anonymous
            raise self._refused(NO_CREDENTIALS if is_anonymous else refusal)

    def count_request(self) -> None:
        """Count one more request towards the rate limit, or raise CallRefused."""
        refusal = self.principal.check_limits(self.access.now())
        if refusal is not None:
            raise self._refused(refusal)

    def check_concurrency(self) -> None:
        """Raise CallRefused if the principal has reached its concurrency limit."""
        principal = self.principal
        if principal.usage.is_full(principal.grant.limits):
            raise self._refused(principal.too_many())

    def _refused(self, refusal: Refusal) -> CallRefused:
        self.access.refusals.add(refusal, self.peer)
        return CallRefused(refusal)


class AccessControl:
    """Applies the auth configuration to calls. `now` returns a monotonic time in seconds."""

    # Credential headers are never forwarded to models.
    headers = CREDENTIAL_HEADERS

    def __init__(
        self, authenticator: Authenticator, refusals: AccessRefusals, now: Callable[[], float]
    ) -> None:
        self._authenticator = authenticator
        self.anonymous = authenticator.anonymous
        self.refusals = refusals
        self.now = now

    def authorize(
        self,
        api_key: Text | None,
        authorization: Text | None,
        peer: str,
        api: str,
        model: str = "",
    ) -> Caller:
        """Return the caller, or raise CallRefused. model: the named model, or empty."""
        try:
            principal = self._authenticator.identify(Credentials(api_key, authorization, peer))
        except CallRefused as refused:
            self.refusals.add(refused.refusal, peer, refused.detail)
            raise
        caller = Caller(principal, peer, self)
        caller.check_rights(api, model)
        return caller


def open_access(path: str) -> tuple[AccessControl, FileWatch[LoadedConfig]]:
    """Return the access control for a configuration file, and the watch that rereads the file."""
    loaded = load_config(path)
    authenticator = Authenticator(*loaded)
    access = AccessControl(authenticator, AccessRefusals(monotonic), monotonic)
    return access, watch_config(path, loaded, lambda changed: authenticator.apply(*changed))
