"""Ports that several processes accept at, and that outlive these processes.

A parent binds the sockets and its children, the members, inherit them. If a member ends, another
member or its successor accepts the waiting connections. SO_REUSEPORT spreads few connections
unevenly and also gives connections to members that hang. Members publish their numbers of
connections, so that the one with the fewest accepts.
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
    """Ports of a group of one or more members, on the parent's side."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._sockets: dict[str, list[socket.socket]] = {}
        # Ports that other groups may serve as well.
        self._reused: set[str] = set()
        self._claims: list[UnixClaim] = []
        self._counts_fd = os.memfd_create("nereid-connections", os.MFD_CLOEXEC)
        self._counts = self._map_counts()

    async def bind(self, port: str, address: str, *, reuse_port: bool = False) -> str:
        """Bind host:port or unix:/path; return the address with its actual port. Raises OSError.

        Connections are refused until the first member listens.
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
        """Map the counts of all bound ports. No member may run yet."""
        os.ftruncate(self._counts_fd, (len(self._sockets) + 1) * self._members * COUNT_BYTES)
        return GroupCounts(_cells(self._counts_fd), self._members)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that each member inherits."""
        sockets = [sock.fileno() for port in self._sockets.values() for sock in port]
        return (*sockets, self._counts_fd)

    def description(self, member: int) -> dict[str, Any]:
        """Return the description with which a member creates its InheritedPorts."""
        return {
            "member": member,
            "members": self._members,
            "counts": self._counts_fd,
            "ports": {
                name: [sock.fileno() for sock in sockets] for name, sockets in self._sockets.items()
            },
        }

    def on_member_ended(self, member: int) -> None:
        """Clear the counts of a member that has ended."""
        self._counts.clear_member(member)
        if not self._counts.is_served():
            # Otherwise the system would send connections to this group, which serves none.
            self._refuse(self._reused)

    def refuse_unserved(self) -> None:
        """Refuse new and waiting connections unless a member serves. Unix sockets keep waiting."""
        if not self._counts.is_served():
            self._refuse(self._sockets)

    def _refuse(self, ports: Collection[str]) -> None:
        sockets = [sock for port in ports for sock in self._sockets[port]]
        tcp = [sock for sock in sockets if sock.family != socket.AF_UNIX]
        refuse(tcp, self._counts, socket.SHUT_RDWR, BACKLOG)

    def close(self) -> None:
        """Close the parent's sockets. The ports are free once all members have closed theirs."""
        for sockets in self._sockets.values():
            for sock in sockets:
                sock.close()
            sockets.clear()
        for claim in self._claims:
            claim.release()
        self._claims.clear()


@dataclass(frozen=True)
class InheritedPort:
    """One of the ports, on a member's side."""

    sockets: list[socket.socket]
    # `None` if there is only one member.
    share: ConnectionShare | None


class InheritedPorts:
    """Ports of a group, on a member's side."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        """Open the ports that the parent's SharedPorts.description() describes."""
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
        """Declare this member ready, and wait up to `limit_s` for the others.

        Without this wait, the first member would get all of the first connections.
        """
        self._serving[self._member] = 1
        deadline = time.monotonic() + limit_s
        # Other processes cannot notify this one.
        while not all(self._serving) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_READY_INTERVAL_S)

    def get(self, port: str) -> InheritedPort | None:
        """Return the port of this name, or None. The caller should listen at once."""
        return self._ports.get(port)


def _cells(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, 0)).cast("I")


def _inherited(descriptor: int) -> socket.socket:
    # Child processes of this process must not inherit the socket.
    os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock
