"""Single flight: one of several identical requests leads, and the others get its response.

event                                             the flight
a first member joins                              begins, led by the member
another member joins                              has one more follower
a follower leaves                                 has one follower fewer
the leader leaves, and there are followers        is led by the oldest follower
the leader leaves, and there are no followers     ends
it lands: the leader has its response             ends; its followers are returned
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

M = TypeVar("M")


@dataclass(slots=True, eq=False)
class Flight(Generic[M]):
    """Members that want the same response."""

    identity: Hashable
    leader: M
    followers: dict[M, None] = field(default_factory=dict)


class SingleFlight(Generic[M]):
    """Keep all flights of one model version."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight[M]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, identity: Hashable, member: M) -> Flight[M]:
        """Return the flight of this identity with the member, which leads it if it is new."""
        flight = self._flights.get(identity)
        if flight is None:
            flight = self._flights[identity] = Flight(identity, member)
        else:
            flight.followers[member] = None
        return flight

    def leave(self, flight: Flight[M], member: M) -> M | None:
        """Remove a member. If it was the leader of followers, return the new leader."""
        if member is not flight.leader:
            flight.followers.pop(member, None)
            return None
        if not flight.followers:
            self._forget(flight)
            return None
        flight.leader = next(iter(flight.followers))
        del flight.followers[flight.leader]
        return flight.leader

    def land(self, flight: Flight[M]) -> list[M]:
        """End a flight and return its followers, in order of arrival."""
        self._forget(flight)
        followers = list(flight.followers)
        flight.followers.clear()
        return followers

    def _forget(self, flight: Flight[M]) -> None:
        if self._flights.get(flight.identity) is flight:
            del self._flights[flight.identity]
