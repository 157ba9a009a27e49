"""Amounts of each resource, and the check whether they are enough for an instance. Pure.

A global resource is one pool for the whole mesh, any other one pool for each device. The error
texts are Triton's. Knows no grants: `rate_limiter` counts what is held.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.c_integers import parse_c_integer
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.model_config import ResourceNeed

_FORMAT: Final = (
    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or"
    " '<resource_name>:<count>'. Got "
)
_EVERY_DEVICE: Final = -1
_MAX_INT: Final = (1 << 31) - 1
# Triton turns a negative count into an unbounded one.
_UNBOUNDED: Final = 1 << 64


class Device(NamedTuple):
    """One device of the mesh; the CPU of a host counts as its device 0, as on Triton."""

    host: str
    id: int


class Pool(NamedTuple):
    """A resource that instances share: on one device, or in the whole mesh if it has no device."""

    name: str
    device: Device | None


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """Value of one --rate-limit-resource; device -1 means every device."""

    name: str
    count: int
    device: int = _EVERY_DEVICE

    @classmethod
    def parse(cls, text: str) -> ResourceLimit:
        """Parse NAME:COUNT or NAME:COUNT:DEVICE; raise ValueError with Triton's text."""
        name, *numbers = text.split(":")
        if not 1 <= len(numbers) <= 2:
            raise ValueError(_FORMAT + text)
        return cls(name, *map(_parse_int, numbers))

    def __str__(self) -> str:
        return f"{self.name}:{self.count}:{self.device}"


def _parse_int(text: str) -> int:
    number = parse_c_integer(text)
    if number is None:
        raise ValueError(f"Invalid option value. Got {text}")
    if not -_MAX_INT - 1 <= number <= _MAX_INT:
        raise ValueError(f"Provided option value is out of bound. Got {text}")
    return number


class Resources:
    """Pools that instances in the mesh use, and their capacities."""

    def __init__(self, limits: Iterable[ResourceLimit] = ()) -> None:
        """limits: a later one replaces an earlier one of the same name and device."""
        self._limits: dict[str, dict[int, int]] = {}
        for limit in limits:
            count = limit.count if limit.count >= 0 else _UNBOUNDED
            self._limits.setdefault(limit.name, {})[limit.device] = count
        # Number of instances that need each count of a pool.
        self._users: dict[Pool, Counter[int]] = {}
        # Number of instances that use a resource, by its name and whether it is global.
        self._kinds: Counter[tuple[str, bool]] = Counter()

    def require(self, needs: Iterable[ResourceNeed], device: Device) -> None:
        """Raise InvalidArgument if an instance with these needs could never run on this device."""
        kinds = {(need.name, need.is_global) for need in needs}
        for name, is_global in sorted(kinds):
            if (name, not is_global) in kinds or self._kinds[name, not is_global]:
                raise InvalidArgument(
                    f'Resource "{name}" is present as both global and device-specific resource in'
                    " the model configuration."
                )
        for pool, count in pools_of(needs, device).items():
            limit = self._limit(pool)
            if limit is not None and limit < count:
                raise InvalidArgument(
                    f'Resource count for "{pool.name}" is limited to {limit} which will prevent'
                    " scheduling of one or more model instances, the minimum required count is"
                    f" {count}"
                )

    def add_user(self, pools: Mapping[Pool, int]) -> None:
        """Add an instance's needs: a count for each of these pools."""
        self._count_user(pools, 1)

    def remove_user(self, pools: Mapping[Pool, int]) -> None:
        """Remove the needs of an instance that was added."""
        self._count_user(pools, -1)

    def capacity(self, pool: Pool) -> int:
        """Return how much of a pool may be held; by default, the largest need of one instance."""
        limit = self._limit(pool)
        if limit is not None:
            return limit
        users = self._users.get(pool)
        return 0 if users is None else max(users)

    def _count_user(self, pools: Mapping[Pool, int], times: int) -> None:
        for pool, count in pools.items():
            self._kinds[pool.name, pool.device is None] += times
            users = self._users.setdefault(pool, Counter())
            users[count] += times
            if not users[count]:
                del users[count]
            if not users:
                del self._users[pool]

    def _limit(self, pool: Pool) -> int | None:
        """Return the configured limit of a pool; `None` if no resource is limited by a flag.

        Once any resource is limited by a flag, those without a flag are empty, as on Triton.
        """
        if not self._limits:
            return None
        limits = self._limits.get(pool.name, {})
        if pool.device is None:
            return max(limits.values(), default=0)
        return max(limits.get(_EVERY_DEVICE, 0), limits.get(pool.device.id, 0))


def pools_of(needs: Iterable[ResourceNeed], device: Device) -> dict[Pool, int]:
    """Return what an instance on this device needs of each pool; of equal names the last counts."""
    pools = {Pool(need.name, None if need.is_global else device): need.count for need in needs}
    return {pool: count for pool, count in pools.items() if count}
