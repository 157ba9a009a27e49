"""Amounts of each resource: one pool for the mesh if it is global, otherwise one per device."""

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
_UNBOUNDED: Final = 1 << 64


class Device(NamedTuple):
    """Device of the mesh. As on Triton, the CPU of a host is its device 0."""

    host: str
    id: int


class Pool(NamedTuple):
    """Pool of one resource that instances share; `device` is `None` for the whole mesh's pool."""

    name: str
    device: Device | None


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """Value of one --rate-limit-resource flag; device -1 means every device."""

    name: str
    count: int
    device: int = _EVERY_DEVICE

    @classmethod
    def parse(cls, text: str) -> ResourceLimit:
        """Parse NAME:COUNT or NAME:COUNT:DEVICE; raise ValueError with Triton's error text."""
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
    """Capacities of all pools that instances in the mesh use."""

    def __init__(self, limits: Iterable[ResourceLimit] = ()) -> None:
        """limits: if several have the same name and device, the last one counts."""
        self._limits: dict[str, dict[int, int]] = {}
        for limit in limits:
            count = limit.count if limit.count >= 0 else _UNBOUNDED
            self._limits.setdefault(limit.name, {})[limit.device] = count
        # For each pool and count: number of instances that need this count.
        self._users: dict[Pool, Counter[int]] = {}
        # Key: a resource's name, and whether it is global. Value: number of users.
        self._kinds: Counter[tuple[str, bool]] = Counter()

    def require(self, needs: Iterable[ResourceNeed], device: Device) -> None:
        """Raise InvalidArgument if an instance with these needs can never run on this device."""
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
        """Add an instance. pools: maps each pool that it uses to the count that it needs."""
        self._count_user(pools, 1)

    def remove_user(self, pools: Mapping[Pool, int]) -> None:
        """Remove an instance that was added. pools: the same as for add_user()."""
        self._count_user(pools, -1)

    def capacity(self, pool: Pool) -> int:
        """Return a pool's limit; without one, the largest need of a single instance."""
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
        """Return a pool's limit; as on Triton, 0 if only other resources have flags."""
        if not self._limits:
            return None
        limits = self._limits.get(pool.name, {})
        if pool.device is None:
            return max(limits.values(), default=0)
        return max(limits.get(_EVERY_DEVICE, 0), limits.get(pool.device.id, 0))


def pools_of(needs: Iterable[ResourceNeed], device: Device) -> dict[Pool, int]:
    """Return what an instance on this device needs of each pool; the last of duplicates counts."""
    pools = {Pool(need.name, None if need.is_global else device): need.count for need in needs}
    return {pool: count for pool, count in pools.items() if count}
