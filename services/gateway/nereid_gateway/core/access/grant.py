"""Rights of a client: the APIs and models that it may use, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nereid.core.callable_models import write_callable_models
from nereid.core.permitted_models import NamePatterns
from nereid_gateway.core.access.api_groups import APIS

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL: Final = "all"
# Group of the methods in no other group. Only clients with all rights may call them.
UNGROUPED: Final = ""
ALL_APIS: Final = frozenset({*APIS, UNGROUPED})
# A client with either right may use the model as a step of ensembles. A client that may load models
# could load another model under this name anyway.
_STEP_APIS: Final = ("inference", "model-repository")
_CALL_APIS: Final = ("inference",)


@dataclass(frozen=True)
class Limits:
    """Limits of one client. None means no limit. burst: requests that may come at once."""

    requests_per_second: float | None = None
    burst: float = 1.0
    concurrency: int | None = None


@dataclass(frozen=True)
class Permission:
    """Permission to use groups of APIs with certain models."""

    rights: frozenset[str]
    # Shell-style patterns of model names. None means all models.
    models: tuple[str, ...] | None = None

    @cached_property
    def _patterns(self) -> NamePatterns:
        return NamePatterns(self.models or ())

    def permits_model(self, name: str) -> bool:
        """Return whether the permission covers a model of this name."""
        if self.models is None:
            return True
        return self._patterns.match(name)


@dataclass(frozen=True)
class Grant:
    """Permissions and limits of one client. Each permission is sufficient for a call."""

    permissions: tuple[Permission, ...] = ()
    limits: Limits = Limits()

    def permits(self, api: str) -> bool:
        """Return whether calls of this group are permitted with at least one model."""
        # A generator would take 0.3 us more for each call.
        for permission in self.permissions:  # noqa: SIM110
            if api in permission.rights:
                return True
        return False

    def permits_model(self, api: str, model: str) -> bool:
        """Return whether calls of this group are permitted with this model."""
        for permission in self.permissions:
            if api in permission.rights and permission.permits_model(model):
                return True
        return False

    def depends_on_model(self, api: str) -> bool:
        """Return whether a call of this group may be refused because of the model that it names."""
        return not any(
            api in permission.rights and permission.models is None
            for permission in self.permissions
        )

    def step_models(self) -> NamePatterns | None:
        """Return patterns of the models that may be steps of ensembles. None means all models."""
        return self._models_of(_STEP_APIS)

    @cached_property
    def callable_models(self) -> bytes:
        """InferRequest.callable_models of this client's requests."""
        models = self._models_of(_CALL_APIS)
        return b"" if models is None else write_callable_models(models)

    def _models_of(self, apis: Iterable[str]) -> NamePatterns | None:
        """Return patterns of the models to use with one of these APIs. None means all models."""
        models: dict[str, None] = {}
        for permission in self.permissions:
            if permission.rights.isdisjoint(apis):
                continue
            if permission.models is None:
                return None
            models |= dict.fromkeys(permission.models)
        return NamePatterns(tuple(models))


NOTHING: Final = Grant()


def union(grants: Iterable[Grant]) -> Grant:
    """Return a grant with all permissions of these grants, and the widest of each kind of limit."""
    every = tuple(grants)
    if not every:
        return NOTHING
    rates = [grant.limits.requests_per_second for grant in every]
    concurrencies = [grant.limits.concurrency for grant in every]
    limits = Limits(
        None if None in rates else max(rate for rate in rates if rate is not None),
        max(grant.limits.burst for grant in every),
        None
        if None in concurrencies
        else max(limit for limit in concurrencies if limit is not None),
    )
    permissions = tuple(permission for grant in every for permission in grant.permissions)
    return Grant(permissions, limits)
