"""An authenticated client. Decides what it may do; holds no clock, socket or header."""

from __future__ import annotations

from math import ceil

from nereid.core.permitted_models import PermittedModels
from nereid.core.sequence_owners import principal_owner
from nereid.rpc.net.limits.budget import Owner
from nereid_gateway.core.access.grant import NOTHING, Grant
from nereid_gateway.core.access.refusal import Reason, Refusal
from nereid_gateway.core.access.usage import Usage


class Principal:
    """Whom an API key or a token stands for.

    It outlives changes of the configuration, which replace its grant: streams that are open and
    requests in flight keep to the present one.
    """

    __slots__ = ("grant", "name", "sequence_owner", "usage")

    def __init__(
        self, name: str, grant: Grant = NOTHING, identity: tuple[str, ...] | None = None
    ) -> None:
        """identity: what no other principal has; None: its name is that of an API key; empty: it
        is nobody in particular.
        """
        self.name = name
        if identity is None:
            identity = "key", name
        # Whose its sequences are.
        self.sequence_owner = principal_owner(*identity) if identity else ""
        self.grant = grant
        self.usage = Usage()

    @property
    def is_anonymous(self) -> bool:
        """Whether it is nobody in particular: a client without credentials."""
        return not self.sequence_owner

    def with_permitted_steps(self, request: bytes) -> bytes:
        """A RepositoryModelLoadRequest with the models that may be steps of an ensemble."""
        models = self.grant.step_models()
        if models is None:
            return request
        return request + PermittedModels(self.name, models).entry()

    def check_rights(self, api: str, model: str = "") -> Refusal | None:
        """Why a call of this group that names this model (empty: none) is not permitted."""
        grant = self.grant
        if not grant.permits(api):
            return self._not_permitted(f"the API '{api}'" if api else "this method")
        if model and not grant.permits_model(api, model):
            return self._not_permitted(f"the API '{api}' with model '{model[:100]}'")
        return None

    def check_limits(self, now: float) -> Refusal | None:
        """Why one more request is too many now; None: it counts for the rate."""
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
        """The refusal of a request beyond the limit of concurrency."""
        limit = self.grant.limits.concurrency
        message = f"'{self.name}' has {limit} requests in flight, which is its limit"
        return Refusal(Reason.CONCURRENCY, message, 1.0)

    def _not_permitted(self, what: str) -> Refusal:
        return Refusal(Reason.NOT_PERMITTED, f"'{self.name}' has no right to use {what}")


def principal_of(sender: object) -> Principal | None:
    """Who has sent a request, if that is known by credentials."""
    owner = sender.owner if isinstance(sender, Owner) else None
    return owner if isinstance(owner, Principal) else None
