"""Decides which kept environments to remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class KeptEnvironment(NamedTuple):
    """A complete environment. last_used is a time by any clock that all environments share."""

    size: int
    last_used: int
    in_use: bool = False


class KeptLimits(NamedTuple):
    """Limits of all environments together; 0 bytes: no limit."""

    environments: int
    size_bytes: int


def select_excess(
    environments: Mapping[str, KeptEnvironment], limits: KeptLimits
) -> tuple[str, ...]:
    """Return the names of environments to remove: the least recently used, and none in use."""
    count = len(environments)
    size = sum(environment.size for environment in environments.values())
    excess = []
    for name in sorted(environments, key=lambda name: environments[name].last_used):
        if count <= limits.environments and (not limits.size_bytes or size <= limits.size_bytes):
            break
        if not environments[name].in_use:
            excess.append(name)
            count -= 1
            size -= environments[name].size
    return tuple(excess)
