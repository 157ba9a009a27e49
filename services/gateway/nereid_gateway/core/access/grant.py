"""What a client may do: the APIs, the models, and how many requests. Pure data and its union."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nereid.core.permitted_models import NamePatterns
from nereid_gateway.core.access.api_groups import APIS

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL: Final = "all"
# The group of what belongs to no other: whoever has all rights has it.
UNGROUPED: Final = ""
ALL_APIS: Final = frozenset({*APIS, UNGROUPED})
# Whoever has one of these for a model may have ensembles use it: who may load it might as well
# load another one under its name.
_STEP_APIS: Final = ("inference", "model-repository")


@dataclass(frozen=True)
class Limits:
    """None: no limit. `burst` is how many requests may come at once within the rate."""

    requests_per_second: float | None = None
    burst: float = 1.0
    concurrency: int | None = None


@dataclass(frozen=True)
class Permission:
    """Groups of APIs, and the models that they may be used for."""

    rights: frozenset[str]
    # Patterns of names, as in a shell; None: all models.
    models: tuple[str, ...] | None = None

    @cached_property
    def _patterns(self) -> NamePatterns:
        return NamePatterns(self.models or ())

    def permits_model(self, name: str) -> bool:
        """Whether it covers a model of this name."""
        if self.models is None:
            return True
        return self._patterns.match(name)


@dataclass(frozen=True)
class Grant:
    """The permissions and limits of one client: what any permission permits is permitted."""

    permissions: tuple[Permission, ...] = ()
    limits: Limits = Limits()

    def permits(self, api: str) -> bool:
        """Whether calls of this group are permitted for some model at least."""
        for each in self.permissions:  # noqa: SIM110 - for each call; a generator costs 0.3 us
            if api in each.rights:
                return True
        return False

    def permits_model(self, api: str, model: str) -> bool:
        """Whether calls of this group are permitted for this model."""
        for each in self.permissions:  # noqa: SIM110 - for each call; a generator costs 0.3 us
            if api in each.rights and each.permits_model(model):
                return True
        return False

    def depends_on_model(self, api: str) -> bool:
        """Whether calls of this group that name a model may be refused for it."""
        return not any(api in each.rights and each.models is None for each in self.permissions)

    def step_models(self) -> NamePatterns | None:
        """The models that may be steps of ensembles; None: all."""
        models: dict[str, None] = {}
        for each in self.permissions:
            if each.rights.isdisjoint(_STEP_APIS):
                continue
            if each.models is None:
                return None
            models |= dict.fromkeys(each.models)
        return NamePatterns(tuple(models))


NOTHING: Final = Grant()


def union(grants: Iterable[Grant]) -> Grant:
    """All permissions of several grants, and of each limit the widest."""
    every = tuple(grants)
    if not every:
        return NOTHING
    rates = [each.limits.requests_per_second for each in every]
    concurrencies = [each.limits.concurrency for each in every]
    limits = Limits(
        None if None in rates else max(rate for rate in rates if rate is not None),
        max(each.limits.burst for each in every),
        None if None in concurrencies else max(each for each in concurrencies if each is not None),
    )
    return Grant(tuple(one for each in every for one in each.permissions), limits)
