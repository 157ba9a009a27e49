"""Ports that outlive the processes that serve them: each of these accepts at the same sockets.

A parent binds them, its members inherit them; the ports are taken, and stay taken while a member is
restarted, and what a member has not accepted is accepted by the others, or by the next one. Not
SO_REUSEPORT, which spreads connections by a hash: unevenly where they are few, and to members that
hang as well.

Where there are several members, they leave new connections to the one that has the fewest: each
writes down how many it has, for the others to read. Knows nothing of protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.net.address import text_of, unix_path
from nereid.rpc.net.listener import BACKLOG, UnixClaim, bind_all_tcp, bind_unix

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# A member may have more connections than another by this part of them, but by one at least.
_TOLERANCE: Final = 8
_COUNT_BYTES: Final = 4
_READY_INTERVAL_S: Final = 0.01


class ConnectionShare:
    """One member's connections at one port, and how many the others have. Pure, but for the memory
    that they share: for each member one more than it has open, or 0 while it accepts none.
    """

    def __init__(self, counts: memoryview, member: int) -> None:
        self._counts = counts
        self._member = member
        self._open = 0
        self._opening = 0

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
        """No more connections are for this member."""
        self._counts[self._member] = 0

    def _publish(self) -> None:
        self._counts[self._member] = 1 + self._open + self._opening


class SharedPorts:
    """The parent's side: the ports of one group of members, which may be one alone."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._sockets: dict[str, list[socket.socket]] = {}
        # Those that processes of other groups may serve as well.
        self._reused: set[str] = set()
        self._claims: list[UnixClaim] = []
        # One row for each port, in the order in which they were bound, and one of 1 for each member
        # that is ready to serve.
        self._counts_fd = os.memfd_create("nereid-connections", os.MFD_CLOEXEC)
        os.ftruncate(self._counts_fd, members * _COUNT_BYTES)

    async def bind(self, port: str, address: str, *, reuse_port: bool = False) -> str:
        """Take host:port or unix:/path, without listening yet: connections are refused until the
        first member listens. The real address, with the port that the system chose.

        Raises:
            OSError: the address cannot be had.
        """
        path = unix_path(address)
        if path is None:
            sockets = await bind_all_tcp(address, reuse_port=reuse_port, listening=False)
        else:
            claim = UnixClaim(path)
            sockets = [bind_unix(path, listening=False)]
            claim.bound()
            self._claims.append(claim)
        self._sockets[port] = sockets
        if reuse_port:
            self._reused.add(port)
        os.ftruncate(self._counts_fd, self._rows * self._members * _COUNT_BYTES)
        return text_of(sockets[0].getsockname()) if path is None else f"unix:{path}"

    @property
    def _rows(self) -> int:
        return len(self._sockets) + 1

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What each member inherits."""
        sockets = [each.fileno() for port in self._sockets.values() for each in port]
        return (*sockets, self._counts_fd)

    def description(self, member: int) -> dict[str, Any]:
        """What a member finds them by; see InheritedPorts."""
        return {
            "member": member,
            "members": self._members,
            "counts": self._counts_fd,
            "ports": {
                name: [each.fileno() for each in sockets] for name, sockets in self._sockets.items()
            },
        }

    def on_member_ended(self, member: int) -> None:
        """Its connections are gone, and it accepts no more until it is started again."""
        zero = bytes(_COUNT_BYTES)
        for row in range(self._rows):
            os.pwrite(self._counts_fd, zero, (row * self._members + member) * _COUNT_BYTES)
        if not self._is_served():
            # The system would go on to send this group its part of the connections.
            self._refuse(self._reused)

    def refuse_unserved(self) -> None:
        """Refuse connections, the waiting ones too, until a member listens again; nothing is done
        if one serves. Connections to unix sockets go on to wait.
        """
        if not self._is_served():
            self._refuse(self._sockets)

    def _refuse(self, ports: Collection[str]) -> None:
        sockets = [each for port in ports for each in self._sockets[port]]
        tcp = [each for each in sockets if each.family != socket.AF_UNIX]
        for each in tcp:
            # The end of listening, not of being bound; Linux undoes it in listen().
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if self._is_served():
            # A member has come to listen meanwhile.
            for each in tcp:
                each.listen(BACKLOG)

    def _is_served(self) -> bool:
        """Whether a member listens, or is about to."""
        at = (self._rows - 1) * self._members * _COUNT_BYTES
        return any(os.pread(self._counts_fd, self._members * _COUNT_BYTES, at))

    def close(self) -> None:
        """Leave the ports to the members: they are free once the last of them has closed them."""
        for sockets in self._sockets.values():
            for each in sockets:
                each.close()
            sockets.clear()
        for claim in self._claims:
            claim.release()
        self._claims.clear()


@dataclass(frozen=True)
class InheritedPort:
    """One of the ports, in a member."""

    sockets: list[socket.socket]
    # None: there is one member.
    share: ConnectionShare | None


class InheritedPorts:
    """The member's side."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        """description: the parent's SharedPorts.description."""
        member, members, counts_fd = (description[key] for key in ("member", "members", "counts"))
        self._member = member
        counts = memoryview(mmap.mmap(counts_fd, 0)).cast("I")
        os.close(counts_fd)
        rows = [counts[at : at + members] for at in range(0, len(counts), members)]
        self._ready = rows.pop()
        self._ports = {
            name: InheritedPort(
                list(map(_inherited, descriptors)),
                ConnectionShare(row, member) if members > 1 else None,
            )
            for (name, descriptors), row in zip(description["ports"].items(), rows, strict=True)
        }

    async def await_members(self, limit_s: float) -> None:
        """Declare this member ready to serve, and wait until all are, no longer than this, so that
        the first connections are not all for the first member.
        """
        self._ready[self._member] = 1
        deadline = time.monotonic() + limit_s
        # Other processes announce nothing.
        while not all(self._ready) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_READY_INTERVAL_S)

    def get(self, port: str) -> InheritedPort | None:
        """The port of this name, which is listened at once; None: it is not among them."""
        return self._ports.get(port)


def _inherited(descriptor: int) -> socket.socket:
    # Not for processes that this one starts.
    os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock
