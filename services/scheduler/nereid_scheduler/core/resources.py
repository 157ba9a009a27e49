"""How much there is of each resource, and whether that is enough for an instance; pure.

A global resource is one pool for the whole mesh, any other one pool for each device. The texts are
Triton's.
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
_LARGEST_INT: Final = (1 << 31) - 1
# What Triton makes of a negative count.
_UNBOUNDED: Final = 1 << 64


class Device(NamedTuple):
    """One device of the mesh; the CPU of a host counts as its device 0, as on Triton."""

    host: str
    id: int


class Pool(NamedTuple):
    """A resource that instances share. device None: all of the mesh, else those on this device."""

    name: str
    device: Device | None


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """One --rate-limit-resource; device -1: every device."""

    name: str
    count: int
    device: int = _EVERY_DEVICE

    @classmethod
    def parse(cls, text: str) -> ResourceLimit:
        """From NAME:COUNT or NAME:COUNT:DEVICE. Raises ValueError in Triton's words."""
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
    if not -_LARGEST_INT - 1 <= number <= _LARGEST_INT:
        raise ValueError(f"Provided option value is out of bound. Got {text}")
    return number


class Resources:
    """The pools that instances in the mesh use, and what each holds."""

    def __init__(self, limits: Iterable[ResourceLimit] = ()) -> None:
        """limits: a later one replaces an earlier one of equal name and device."""
        self._limits: dict[str, dict[int, int]] = {}
        for limit in limits:
            count = limit.count if limit.count >= 0 else _UNBOUNDED
            self._limits.setdefault(limit.name, {})[limit.device] = count
        # How many instances need each count of a pool.
        self._users: dict[Pool, Counter[int]] = {}
        # By name and whether global: how many instances name the resource so.
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
        """An instance needs so much of each of these pools."""
        self._count_user(pools, 1)

    def remove_user(self, pools: Mapping[Pool, int]) -> None:
        """An instance that was added is gone."""
        self._count_user(pools, -1)

    def capacity(self, pool: Pool) -> int:
        """How much instances may hold of a pool together: by default, what the neediest needs."""
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
        """As on Triton, once any resource is limited by a flag, those without a flag are empty."""
        if not self._limits:
            return None
        limits = self._limits.get(pool.name, {})
        if pool.device is None:
            return max(limits.values(), default=0)
        return max(limits.get(_EVERY_DEVICE, 0), limits.get(pool.device.id, 0))


def pools_of(needs: Iterable[ResourceNeed], device: Device) -> dict[Pool, int]:
    """What an instance on this device needs of each pool; of equal names the last counts."""
    pools = {Pool(need.name, None if need.is_global else device): need.count for need in needs}
    return {pool: count for pool, count in pools.items() if count}
