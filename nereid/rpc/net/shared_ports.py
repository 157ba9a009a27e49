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
import mmap
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.net.address import text_of, unix_path
from nereid.rpc.net.binding import BACKLOG, UnixClaim, bind_all_tcp, bind_unix
from nereid.rpc.net.limits.shared_accepts import COUNT_BYTES, ConnectionShare, GroupCounts, refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_READY_INTERVAL_S: Final = 0.01


class SharedPorts:
    """The parent's side: the ports of one group of members, which may be one alone."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._sockets: dict[str, list[socket.socket]] = {}
        # Those that processes of other groups may serve as well.
        self._reused: set[str] = set()
        self._claims: list[UnixClaim] = []
        self._counts_fd = os.memfd_create("nereid-connections", os.MFD_CLOEXEC)
        self._counts = self._map_counts()

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
        self._counts = self._map_counts()
        return text_of(sockets[0].getsockname()) if path is None else f"unix:{path}"

    def _map_counts(self) -> GroupCounts:
        """Of the ports that are bound; members do not run yet."""
        os.ftruncate(self._counts_fd, (len(self._sockets) + 1) * self._members * COUNT_BYTES)
        return GroupCounts(_cells(self._counts_fd), self._members)

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
        self._counts.clear_member(member)
        if not self._counts.is_served():
            # The system would go on to send this group its part of the connections.
            self._refuse(self._reused)

    def refuse_unserved(self) -> None:
        """Refuse connections, the waiting ones too, until a member listens again; nothing is done
        if one serves. Connections to unix sockets go on to wait.
        """
        if not self._counts.is_served():
            self._refuse(self._sockets)

    def _refuse(self, ports: Collection[str]) -> None:
        sockets = [each for port in ports for each in self._sockets[port]]
        tcp = [each for each in sockets if each.family != socket.AF_UNIX]
        refuse(tcp, self._counts, socket.SHUT_RDWR, BACKLOG)

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
        counts = GroupCounts(_cells(counts_fd), members)
        os.close(counts_fd)
        self._serving = counts.serving
        self._ports = {
            name: InheritedPort(
                list(map(_inherited, descriptors)),
                ConnectionShare(row, member) if members > 1 else None,
            )
            for (name, descriptors), row in zip(
                description["ports"].items(), counts.ports, strict=True
            )
        }

    async def await_members(self, limit_s: float) -> None:
        """Declare this member ready to serve, and wait until all are, no longer than this, so that
        the first connections are not all for the first member.
        """
        self._serving[self._member] = 1
        deadline = time.monotonic() + limit_s
        # Other processes announce nothing.
        while not all(self._serving) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_READY_INTERVAL_S)

    def get(self, port: str) -> InheritedPort | None:
        """The port of this name, which is listened at once; None: it is not among them."""
        return self._ports.get(port)


def _cells(descriptor: int) -> memoryview:
    """The memory behind a descriptor."""
    return memoryview(mmap.mmap(descriptor, 0)).cast("I")


def _inherited(descriptor: int) -> socket.socket:
    # Not for processes that this one starts.
    os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock
