"""Whose credentials a call has, and whether they permit it. Counts and logs what they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid.services.gateway.auth.authenticator import Credentials
from nereid.services.gateway.auth.refusal import NO_CREDENTIALS, CallRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.services.gateway.auth.authenticator import Authenticator, Text
    from nereid.services.gateway.auth.principal import Principal
    from nereid.services.gateway.auth.refusal import Refusal
    from nereid.services.gateway.auth.refusals import AccessRefusals


class Caller(NamedTuple):
    """Whoever sends a permitted call, and the address that it comes from."""

    principal: Principal
    peer: str


class AccessControl:
    """Applies the configuration to calls; `now` is a monotonic clock, in seconds."""

    def __init__(
        self, authenticator: Authenticator, refusals: AccessRefusals, now: Callable[[], float]
    ) -> None:
        self._authenticator = authenticator
        self.refusals = refusals
        self._now = now

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
        caller = Caller(principal, peer)
        self.check_rights(caller, api, model)
        return caller

    def check_rights(self, caller: Caller, api: str, model: str) -> None:
        """Raises CallRefused if the call is not permitted."""
        principal, peer = caller
        refusal = principal.check_rights(api, model)
        if refusal is not None:
            # Credentials might help.
            missing = principal is self._authenticator.anonymous
            raise self._refused(NO_CREDENTIALS if missing else refusal, peer)

    def count_request(self, caller: Caller) -> None:
        """Count one more request for the rate; raises CallRefused if it is too many."""
        refusal = caller.principal.check_limits(self._now())
        if refusal is not None:
            raise self._refused(refusal, caller.peer)

    def check_concurrency(self, caller: Caller) -> None:
        """Raises CallRefused if as many requests are in flight as may be."""
        principal = caller.principal
        if principal.usage.is_full(principal.grant.limits):
            raise self._refused(principal.too_many(), caller.peer)

    def _refused(self, refusal: Refusal, peer: str) -> CallRefused:
        self.refusals.add(refusal, peer)
        return CallRefused(refusal)
