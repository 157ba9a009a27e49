"""Whose credentials a call has, and whether they permit it. Counts and logs what they do not."""

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
from nereid_gateway.guards.auth.reload import ConfigWatch, load_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.core.access.principal import Principal
    from nereid_gateway.core.access.refusal import Refusal
    from nereid_gateway.guards.auth.authenticator import Text


class Caller(NamedTuple):
    """Whoever sends a call that is permitted so far, and the address that it comes from."""

    principal: Principal
    peer: str
    access: AccessControl

    def check_rights(self, api: str, model: str) -> None:
        """Raises CallRefused if the call is not permitted."""
        refusal = self.principal.check_rights(api, model)
        if refusal is not None:
            # Credentials might help.
            missing = self.principal is self.access.anonymous
            raise self._refused(NO_CREDENTIALS if missing else refusal)

    def count_request(self) -> None:
        """Count one more request for the rate; raises CallRefused if it is too many."""
        refusal = self.principal.check_limits(self.access.now())
        if refusal is not None:
            raise self._refused(refusal)

    def check_concurrency(self) -> None:
        """Raises CallRefused if as many requests are in flight as may be."""
        principal = self.principal
        if principal.usage.is_full(principal.grant.limits):
            raise self._refused(principal.too_many())

    def _refused(self, refusal: Refusal) -> CallRefused:
        self.access.refusals.add(refusal, self.peer)
        return CallRefused(refusal)


class AccessControl:
    """Applies the configuration to calls; `now` is a monotonic clock, in seconds."""

    # Not forwarded to models.
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
        """Who sends a call of this group of APIs that names this model (empty: none).

        Raises:
            CallRefused: nobody who may.
        """
        try:
            principal = self._authenticator.identify(Credentials(api_key, authorization, peer))
        except CallRefused as refused:
            self.refusals.add(refused.refusal, peer, refused.detail)
            raise
        caller = Caller(principal, peer, self)
        caller.check_rights(api, model)
        return caller


def open_access(path: str) -> tuple[AccessControl, ConfigWatch]:
    """By a file, which is read anew when it changes."""
    loaded = load_config(path)
    authenticator = Authenticator(*loaded)
    access = AccessControl(authenticator, AccessRefusals(monotonic), monotonic)
    return access, ConfigWatch(path, loaded, lambda changed: authenticator.apply(*changed))
