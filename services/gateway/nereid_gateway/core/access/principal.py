"""Authenticated client, with the checks of its rights and limits.

Callers pass in the time. The module knows no sockets and no headers.
"""

from __future__ import annotations

from math import ceil

from nereid.core.permitted_models import PermittedModels
from nereid.core.sequence_owners import principal_owner
from nereid.rpc.net.limits.budget import Owner
from nereid_gateway.core.access.grant import NOTHING, Grant
from nereid_gateway.core.access.refusal import Reason, Refusal
from nereid_gateway.core.access.usage import Usage


class Principal:
    """Client that an API key or a token identifies.

    A principal outlives changes of the configuration. A change replaces its grant, so open streams
    and requests in flight follow the present grant.
    """

    __slots__ = ("grant", "name", "sequence_owner", "usage")

    def __init__(
        self, name: str, grant: Grant = NOTHING, identity: tuple[str, ...] | None = None
    ) -> None:
        """Make a principal.

        identity: texts that no other principal has. With `None`, the identity is the name of the
        API key. An empty tuple stands for all clients without credentials.
        """
        self.name = name
        if identity is None:
            identity = "key", name
        # Owner of the sequences that this principal starts; empty for clients without credentials.
        self.sequence_owner = principal_owner(*identity) if identity else ""
        self.grant = grant
        self.usage = Usage()

    @property
    def is_anonymous(self) -> bool:
        """True if the principal stands for all clients without credentials."""
        return not self.sequence_owner

    def with_permitted_steps(self, request: bytes) -> bytes:
        """Return a load request, with the models added that may be steps of an ensemble.

        The request is a serialised RepositoryModelLoadRequest.
        """
        models = self.grant.step_models()
        if models is None:
            return request
        return request + PermittedModels(self.name, models).entry()

    def check_rights(self, api: str, model: str = "") -> Refusal | None:
        """Return the refusal of a call of this group of APIs, or `None` if the call is permitted.

        model: the model that the call names, or an empty text.
        """
        grant = self.grant
        if not grant.permits(api):
            return self._not_permitted(f"the API '{api}'" if api else "this method")
        if model and not grant.permits_model(api, model):
            return self._not_permitted(f"the API '{api}' with model '{model[:100]}'")
        return None

    def check_limits(self, now: float) -> Refusal | None:
        """Check one more request against the limits; return its refusal if it exceeds one.

        If the request is within the limits, it is counted towards the rate, and `None` is returned.

        now: the present time of a monotonic clock, in seconds.
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
