"""Decisions at ports that several processes serve: who accepts, or whether all refuse.

Members and parent share memory for the numbers of connections (docs/protocols.md).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_BYTES: Final = 4
# A member accepts if it has at most 1/8 more connections than the member with the fewest.
_TOLERANCE: Final = 8
# How often in a row a member leaves a new connection to another.
_MAX_YIELDS: Final = 10


class GroupCounts:
    """Shared memory with the members' numbers of connections.

    There is a row for each port, in the order of binding. The last row has a 1 for each member that
    serves or is about to. A row has one number for each member.
    """

    def __init__(self, cells: memoryview, members: int) -> None:
        self._rows = [cells[at : at + members] for at in range(0, len(cells), members)]
        self.serving = self._rows[-1]

    @property
    def ports(self) -> list[memoryview]:
        """Rows of the ports, in the order of binding."""
        return self._rows[:-1]

    def clear_member(self, member: int) -> None:
        """Clear the numbers of a member whose process has ended."""
        for row in self._rows:
            row[member] = 0

    def is_served(self) -> bool:
        """Return whether any member listens, or is about to listen."""
        return any(self.serving)


class ConnectionShare:
    """The numbers of connections that the members have at one port.

    A number is 0 while the member does not accept, otherwise the member's connections plus one.
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
        """Return whether no other member has clearly fewer connections."""
        own = self._counts[self._member] - 1
        fewest = min((count - 1 for count in self._counts if count), default=0)
        return own <= fewest + fewest // _TOLERANCE

    def close(self) -> None:
        """Declare that this member accepts no more. Open connections are not affected."""
        self._accepts = False
        self._publish()

    def _publish(self) -> None:
        self._counts[self._member] = 1 + self._open + self._opening if self._accepts else 0


class AcceptDecision(enum.Enum):
    """Decision of a member about a connection that may be waiting."""

    ACCEPT = enum.auto()
    # Accept no more in this turn. If a connection waits, the event loop calls again at once.
    LEAVE = enum.auto()
    # Leave connections to a member that has fewer. Call on_yielded() after a moment.
    YIELD = enum.auto()


class AcceptDecisions:
    """Sequence of a member's decisions at one socket."""

    def __init__(self, share: ConnectionShare | None) -> None:
        """Create the sequence; `share` is None if no other process serves the port."""
        self._share = share
        self._yields = 0

    def next_decision(self, accepted: int) -> AcceptDecision:
        """Decide about the next connection; `accepted` counts those of this turn of the loop."""
        if self._share is None or self._share.should_accept():
            return AcceptDecision.ACCEPT
        if accepted:
            return AcceptDecision.LEAVE
        if self._yields < _MAX_YIELDS:
            return AcceptDecision.YIELD
        # The other member has not accepted the waiting connection.
        self._yields = 0
        return AcceptDecision.ACCEPT

    def on_yielded(self, *, waits: bool) -> None:
        """Record whether a connection is still waiting after a yield."""
        self._yields = self._yields + 1 if waits else 0


class ListeningSocket(Protocol):
    """Methods of socket.socket that this module calls."""

    def shutdown(self, how: int, /) -> None:
        """Stop listening but stay bound. New and waiting connections are refused."""

    def listen(self, backlog: int, /) -> None:
        """Listen again after shutdown()."""


def refuse(sockets: Iterable[ListeningSocket], counts: GroupCounts, how: int, backlog: int) -> None:
    """Refuse new and waiting connections, unless a member has begun to serve meanwhile."""
    ended = []
    for sock in sockets:
        try:
            sock.shutdown(how)
        except OSError:
            # No member listens at the socket.
            continue
        ended.append(sock)
    if counts.is_served():
        # A member began to listen meanwhile, and the shutdown may have ended that.
        for sock in ended:
            sock.listen(backlog)
