"""What a client may do: the APIs, the models, and how many requests. Pure data and its union."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nereid.services.gateway.policy.api_groups import ROUTES_BY_API

if TYPE_CHECKING:
    from collections.abc import Iterable

APIS: Final = frozenset(ROUTES_BY_API)
ALL: Final = "all"
# The group of what belongs to no other: whoever has all rights has it.
UNGROUPED: Final = ""
ALL_APIS: Final = APIS | {UNGROUPED}
# Matching takes time by the length of a name; no model's folder has a longer one.
_MAX_MODEL_NAME: Final = 1024


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
    def _models_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.models or ())) or "(?!)")

    def permits_model(self, name: str) -> bool:
        """Whether it covers a model of this name."""
        if self.models is None:
            return True
        return len(name) <= _MAX_MODEL_NAME and self._models_pattern.match(name) is not None


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
