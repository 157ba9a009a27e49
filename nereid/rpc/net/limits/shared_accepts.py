"""Who accepts at ports that several processes serve, and whether anybody does: decisions alone.

Each member of a group writes down, in memory that all of them and their parent share, how many
connections it has at each port, and whether it serves (docs/protocols.md). Knows no socket.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_BYTES: Final = 4
# A member may have more connections than another by this part of them, but by one at least.
_TOLERANCE: Final = 8
# How often a new connection is left to a member with fewer.
_MAX_YIELDS: Final = 10


class GroupCounts:
    """What the members of a group write down: a row for each port, in the order in which the ports
    were bound, and one of 1 for each member that serves, or is about to.
    """

    def __init__(self, cells: memoryview, members: int) -> None:
        """cells: unsigned integers, COUNT_BYTES each."""
        self._rows = [cells[at : at + members] for at in range(0, len(cells), members)]
        self.serving = self._rows[-1]

    @property
    def ports(self) -> list[memoryview]:
        """The rows of the ports."""
        return self._rows[:-1]

    def clear_member(self, member: int) -> None:
        """Its process has ended: its connections are gone, and it accepts none."""
        for row in self._rows:
            row[member] = 0

    def is_served(self) -> bool:
        """Whether a member listens, or is about to."""
        return any(self.serving)


class ConnectionShare:
    """One member's connections at one port, and how many the others have: for each member one more
    than it has, or 0 while it accepts none.
    """

    def __init__(self, counts: memoryview, member: int) -> None:
        self._counts = counts
        self._member = member
        self._open = 0
        self._opening = 0
        self._accepts = True

    def set_open(self, connections: int) -> None:
        """So many are open."""
        self._open = connections
        self._publish()

    def begin_opening(self) -> None:
        """One was accepted; it counts until it is among the open ones."""
        self._opening += 1
        self._publish()

    def end_opening(self) -> None:
        """It is open, or has failed."""
        self._opening -= 1
        self._publish()

    def should_accept(self) -> bool:
        """Whether a new connection is for this member: no other has clearly fewer."""
        own = self._counts[self._member] - 1
        fewest = min((each - 1 for each in self._counts if each), default=0)
        return own <= fewest + fewest // _TOLERANCE

    def close(self) -> None:
        """No more connections are for this member, whatever becomes of those that it has."""
        self._accepts = False
        self._publish()

    def _publish(self) -> None:
        self._counts[self._member] = 1 + self._open + self._opening if self._accepts else 0


class Turn(enum.Enum):
    """What a member does about connections that may wait."""

    ACCEPT = enum.auto()
    # The loop comes back at once if there is another.
    LEAVE = enum.auto()
    # For a moment, to a member that has fewer; then on_yielded().
    YIELD = enum.auto()


class AcceptTurns:
    """One member's, at one socket."""

    def __init__(self, share: ConnectionShare | None) -> None:
        """share: None: nobody else serves the port."""
        self._share = share
        self._yields = 0

    def next_turn(self, accepted: int) -> Turn:
        """accepted: so many in this turn of the loop."""
        if self._share is None or self._share.should_accept():
            return Turn.ACCEPT
        if accepted:
            return Turn.LEAVE
        if self._yields < _MAX_YIELDS:
            return Turn.YIELD
        # Whoever has fewer connections does not accept them.
        self._yields = 0
        return Turn.ACCEPT

    def on_yielded(self, *, waits: bool) -> None:
        """waits: whether a connection is still there."""
        self._yields = self._yields + 1 if waits else 0


class ListeningSocket(Protocol):
    """A socket that processes share; socket.socket is one."""

    def shutdown(self, how: int, /) -> None:
        """End listening, not being bound: those that wait are refused, and so are new ones."""

    def listen(self, backlog: int, /) -> None:
        """Listen again."""


def refuse(sockets: Iterable[ListeningSocket], counts: GroupCounts, how: int, backlog: int) -> None:
    """Refuse connections, the waiting ones too, unless a member serves by now."""
    ended = []
    for each in sockets:
        try:
            each.shutdown(how)
        except OSError:
            # Nobody has listened yet.
            continue
        ended.append(each)
    if counts.is_served():
        # A member has come to listen meanwhile, before it was ended or after that.
        for each in ended:
            each.listen(backlog)
