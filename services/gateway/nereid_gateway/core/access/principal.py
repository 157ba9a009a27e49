"""Authenticated client, with the checks of its rights and limits."""

from __future__ import annotations

from math import ceil

from nereid.core.permitted_models import ALL_NAMES, PermittedModels
from nereid.core.sequence_owners import principal_owner
from nereid.rpc.net.limits.budget import Owner
from nereid_gateway.core.access.grant import NOTHING, Grant
from nereid_gateway.core.access.refusal import Reason, Refusal
from nereid_gateway.core.access.usage import Usage


class Principal:
    """Client that an API key or a token identifies.

    A change of the configuration replaces the grant, so open streams and pending requests follow
    the new grant.
    """

    __slots__ = ("grant", "name", "sequence_owner", "usage")

    def __init__(
        self, name: str, grant: Grant = NOTHING, identity: tuple[str, ...] | None = None
    ) -> None:
        """Make a principal. identity: texts that no other principal has.

        By default, the name of the API key is the identity. It is empty for clients without
        credentials.
        """
        self.name = name
        if identity is None:
            identity = "key", name
        self.sequence_owner = principal_owner(*identity) if identity else ""
        self.grant = grant
        self.usage = Usage()

    @property
    def is_anonymous(self) -> bool:
        """True if the principal stands for all clients without credentials."""
        return not self.sequence_owner

    def with_requester(self, request: bytes) -> bytes:
        """Add the name, and which models may be steps, to a serialised load or unload request."""
        models = self.grant.step_models()
        if models is None:
            if self.is_anonymous:
                return request
            models = ALL_NAMES
        return request + PermittedModels(self.name, models).entry()

    def check_rights(self, api: str, model: str = "") -> Refusal | None:
        """Return the refusal of a call, or None. model: the model that the call names, or empty."""
        grant = self.grant
        if not grant.permits(api):
            return self._not_permitted(f"the API '{api}'" if api else "this method")
        if model and not grant.permits_model(api, model):
            return self._not_permitted(f"the API '{api}' with model '{model[:100]}'")
        return None

    def check_limits(self, now: float) -> Refusal | None:
        """Count one more request towards the rate, or return its refusal if it exceeds a limit.

        now: seconds of a monotonic clock.
        """
        limits = self.grant.limits
        if self.usage.is_full(limits):
            return self.too_many()
        wait_s = self.usage.wait_s(limits, now)
        if not wait_s:
            return None
        message = (
            f"'{self.name}' exceeds {limits.requests_per_second:g} requests per second;"
            f" try again in {ceil(wait_s * 1000)} ms"
        )
        return Refusal(Reason.RATE, message, wait_s)

    def too_many(self) -> Refusal:
        """Return the refusal of a request that exceeds the concurrency limit."""
        limit = self.grant.limits.concurrency
        message = f"'{self.name}' has {limit} requests in flight, which is its limit"
        return Refusal(Reason.CONCURRENCY, message, 1.0)

    def _not_permitted(self, what: str) -> Refusal:
        return Refusal(Reason.NOT_PERMITTED, f"'{self.name}' has no right to use {what}")


def principal_of(sender: object) -> Principal | None:
    """Return the principal that sent a request, or `None` if its credentials were not checked."""
    owner = sender.owner if isinstance(sender, Owner) else None
    return owner if isinstance(owner, Principal) else None


def as_requested_by(sender: object, request: bytes) -> bytes:
    """Return a serialised load or unload request with the sender's name and rights."""
    principal = principal_of(sender)
    return request if principal is None else principal.with_requester(request)
