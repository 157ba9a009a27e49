"""Decisions at ports that several processes serve: who accepts, and whether anybody does.

Each member of a group writes down, in memory that all of them and their parent share, how many
connections it has at each port, and whether it serves (docs/protocols.md). Decisions alone; knows
no socket.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_BYTES: Final = 4
# Divisor of the tolerance: a member may have an eighth more connections than another, and one more
# in any case.
_TOLERANCE: Final = 8
# Maximum number of times that a new connection is left to a member with fewer.
_MAX_YIELDS: Final = 10


class GroupCounts:
    """Shared memory in which the members of a group write their counts.

    It has a row for each port, in the order in which the ports were bound, and a row with a 1 for
    each member that serves, or is about to.
    """

    def __init__(self, cells: memoryview, members: int) -> None:
        """Read memory of unsigned integers, COUNT_BYTES each."""
        self._rows = [cells[at : at + members] for at in range(0, len(cells), members)]
        self.serving = self._rows[-1]

    @property
    def ports(self) -> list[memoryview]:
        """Rows of the ports."""
        return self._rows[:-1]

    def clear_member(self, member: int) -> None:
        """Clear the counts of a member whose process has ended, so it accepts none."""
        for row in self._rows:
            row[member] = 0

    def is_served(self) -> bool:
        """Return whether a member listens, or is about to."""
        return any(self.serving)


class ConnectionShare:
    """One member's connections at one port, and the counts of the others.

    The row has, for each member, the number of its connections plus one, or 0 while it accepts
    none.
    """

    def __init__(self, counts: memoryview, member: int) -> None:
        self._counts = counts
        self._member = member
        self._open = 0
        self._opening = 0
        self._accepts = True

    def set_open(self, connections: int) -> None:
        """Set the number of open connections."""
        self._open = connections
        self._publish()

    def begin_opening(self) -> None:
        """Count a connection that was accepted, until it is among the open ones."""
        self._opening += 1
        self._publish()

    def end_opening(self) -> None:
        """Stop counting an accepted connection, which is open or has failed."""
        self._opening -= 1
        self._publish()

    def should_accept(self) -> bool:
        """Return whether this member takes a new connection: no other has clearly fewer."""
        own = self._counts[self._member] - 1
        fewest = min((count - 1 for count in self._counts if count), default=0)
        return own <= fewest + fewest // _TOLERANCE

    def close(self) -> None:
        """Take no more connections for this member, whatever happens to those it has."""
        self._accepts = False
        self._publish()

    def _publish(self) -> None:
        self._counts[self._member] = 1 + self._open + self._opening if self._accepts else 0


class Turn(enum.Enum):
    """Decision of a member about connections that may wait."""

    ACCEPT = enum.auto()
    # Return to the loop, which calls again at once if another connection waits.
    LEAVE = enum.auto()
    # Leave connections to a member that has fewer for a moment, then call on_yielded().
    YIELD = enum.auto()


class AcceptTurns:
    """Turns of one member at one socket."""

    def __init__(self, share: ConnectionShare | None) -> None:
        """Begin without yields; `share` is None if nobody else serves the port."""
        self._share = share
        self._yields = 0

    def next_turn(self, accepted: int) -> Turn:
        """Decide on the next connection after `accepted` ones in this turn of the loop."""
        if self._share is None or self._share.should_accept():
            return Turn.ACCEPT
        if accepted:
            return Turn.LEAVE
        if self._yields < _MAX_YIELDS:
            return Turn.YIELD
        # The member with fewer connections does not accept them.
        self._yields = 0
        return Turn.ACCEPT

    def on_yielded(self, *, waits: bool) -> None:
        """Record whether a connection still waits after a yield."""
        self._yields = self._yields + 1 if waits else 0


class ListeningSocket(Protocol):
    """Socket that processes share; socket.socket is one."""

    def shutdown(self, how: int, /) -> None:
        """Stop listening but stay bound: waiting and new connections are refused."""

    def listen(self, backlog: int, /) -> None:
        """Listen again."""


def refuse(sockets: Iterable[ListeningSocket], counts: GroupCounts, how: int, backlog: int) -> None:
    """Refuse connections, the waiting ones too, unless a member serves by now."""
    ended = []
    for sock in sockets:
        try:
            sock.shutdown(how)
        except OSError:
            # No member has listened yet.
            continue
        ended.append(sock)
    if counts.is_served():
        # A member has begun to listen meanwhile, before its listening was ended here or after that.
        for sock in ended:
            sock.listen(backlog)
