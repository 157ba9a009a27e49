"""Decisions at ports that several processes serve: who accepts, or whether all refuse.

The members of a group and their parent share memory. Each member writes to this memory how many
connections it has at each port, and whether it serves (docs/protocols.md). The module only decides:
it does no I/O.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_BYTES: Final = 4
# Divisor of the tolerance: a member still accepts if it has at most an eighth more connections than
# the member with the fewest.
_TOLERANCE: Final = 8
# Maximum number of times in a row that a member leaves a new connection to another member.
_MAX_YIELDS: Final = 10


class GroupCounts:
    """Shared memory in which the members of a group write their numbers of connections.

    The memory has a row for each port, in the order in which the ports were bound, and a last row
    with a 1 for each member that serves or is about to serve. Each row has one number for each
    member.
    """

    def __init__(self, cells: memoryview, members: int) -> None:
        """Use memory of unsigned integers, of COUNT_BYTES each."""
        self._rows = [cells[at : at + members] for at in range(0, len(cells), members)]
        self.serving = self._rows[-1]

    @property
    def ports(self) -> list[memoryview]:
        """Rows of the ports, in the order in which the ports were bound."""
        return self._rows[:-1]

    def clear_member(self, member: int) -> None:
        """Clear all numbers of a member whose process has ended, because it accepts nothing."""
        for row in self._rows:
            row[member] = 0

    def is_served(self) -> bool:
        """Return whether any member listens, or is about to listen."""
        return any(self.serving)


class ConnectionShare:
    """Number of connections that one member has at one port, and the numbers of the other members.

    In the port's row of the shared memory, each member has a number. The number is 0 while the
    member does not accept connections; otherwise it is the member's number of connections plus one.
    """

    def __init__(self, counts: memoryview, member: int) -> None:
        self._counts = counts
        self._member = member
        self._open = 0
        self._opening = 0
        self._accepts = True

    def set_open(self, connections: int) -> None:
        """Set the number of open connections of this member."""
        self._open = connections
        self._publish()

    def begin_opening(self) -> None:
        """Count a connection that was accepted, until it is counted as open."""
        self._opening += 1
        self._publish()

    def end_opening(self) -> None:
        """Stop counting an accepted connection that is now open or has failed."""
        self._opening -= 1
        self._publish()

    def should_accept(self) -> bool:
        """Return whether this member should accept: no other has clearly fewer connections."""
        own = self._counts[self._member] - 1
        fewest = min((count - 1 for count in self._counts if count), default=0)
        return own <= fewest + fewest // _TOLERANCE

    def close(self) -> None:
        """Declare that this member accepts no more connections.

        Its open connections are not affected.
        """
        self._accepts = False
        self._publish()

    def _publish(self) -> None:
        self._counts[self._member] = 1 + self._open + self._opening if self._accepts else 0


class Turn(enum.Enum):
    """Decision of a member about a connection that may be waiting."""

    ACCEPT = enum.auto()
    # Accept no more in this turn. The event loop calls again at once if another connection is
    # waiting.
    LEAVE = enum.auto()
    # Leave waiting connections to a member with fewer connections. Call on_yielded() after a
    # moment.
    YIELD = enum.auto()


class AcceptTurns:
    """Sequence of a member's decisions at one socket."""

    def __init__(self, share: ConnectionShare | None) -> None:
        """Create the sequence; no yield has been counted yet.

        share: None if no other process serves the port.
        """
        self._share = share
        self._yields = 0

    def next_turn(self, accepted: int) -> Turn:
        """Decide about the next connection.

        accepted: number of connections accepted so far in this turn of the event loop.
        """
        if self._share is None or self._share.should_accept():
            return Turn.ACCEPT
        if accepted:
            return Turn.LEAVE
        if self._yields < _MAX_YIELDS:
            return Turn.YIELD
        # The member with fewer connections has not accepted the waiting connection, so accept it
        # here.
        self._yields = 0
        return Turn.ACCEPT

    def on_yielded(self, *, waits: bool) -> None:
        """Record whether a connection is still waiting after a yield."""
        self._yields = self._yields + 1 if waits else 0


class ListeningSocket(Protocol):
    """The methods of a shared socket that this module calls. socket.socket has them."""

    def shutdown(self, how: int, /) -> None:
        """Stop listening but stay bound. New connections and waiting connections are refused."""

    def listen(self, backlog: int, /) -> None:
        """Listen again after shutdown()."""


def refuse(sockets: Iterable[ListeningSocket], counts: GroupCounts, how: int, backlog: int) -> None:
    """Refuse new and waiting connections, unless a member has begun to serve meanwhile."""
    ended = []
    for sock in sockets:
        try:
            sock.shutdown(how)
        except OSError:
            # No member has begun to listen at the socket.
            continue
        ended.append(sock)
    if counts.is_served():
        # A member has begun to listen at the same time. If it began before the shutdown above, the
        # shutdown has ended its listening, so listen again.
        for sock in ended:
            sock.listen(backlog)
