"""Sockets that are bound to addresses, for processes that accept connections there.

The file of a dead server's Unix socket is replaced. The file of a live server is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.net.address import host_and_port

if TYPE_CHECKING:
    from collections.abc import Sequence

# All clients of a process may wait at once while the process restarts. The system may allow fewer
# (net.core.somaxconn).
BACKLOG: Final = 4096
_PROBE_S: Final = 1.0
_PASSIVE: Final[Any] = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}


class UnixClaim:
    """Claim of a Unix socket's path. It removes a dead server's file, and later our own."""

    def __init__(self, path: str) -> None:
        """Claim a path; raise OSError if a live server or another file is there."""
        self._path = path
        self._inode: int | None = None
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 (a path given as text)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise OSError(errno.EEXIST, f"{path} is there and no socket")
        if not _stale(path):
            raise OSError(errno.EADDRINUSE, f"{path} is in use")
        os.unlink(path)  # noqa: PTH108 (likewise)

    def bound(self) -> None:
        """Remember the file of our socket, which is now bound to the path."""
        self._inode = os.stat(self._path).st_ino  # noqa: PTH116 (likewise)

    def release(self) -> None:
        """Remove the socket's file if it is still ours."""
        with contextlib.suppress(OSError):
            if self._inode == os.stat(self._path).st_ino:  # noqa: PTH116 (likewise)
                os.unlink(self._path)  # noqa: PTH108 (likewise)


def _stale(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # If the queue of a live listener is full, connect() blocks.
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def bind_unix(path: str, *, private: bool = False, listening: bool = True) -> socket.socket:
    """Return a socket that is bound to a claimed path; raise OSError if that fails."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if private:
            # Linux gives the file this mode, so other users can never open the file.
            os.fchmod(sock.fileno(), 0o600)
        sock.bind(path)
        if listening:
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(error.errno or errno.EINVAL, f"{path}: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


async def bind_all_tcp(
    address: str, *, reuse_port: bool, listening: bool = True
) -> list[socket.socket]:
    """Return a socket for each address of a host, all with the same port; raises OSError."""
    host, port = host_and_port(address)
    infos = await asyncio.get_running_loop().getaddrinfo(host or None, port, **_PASSIVE)
    return _bind_found(infos, reuse_port=reuse_port, listening=listening)


def check_tcp(address: str, *, reuse_port: bool) -> None:
    """Raise OSError if a process could not listen at an address. Looking up the name blocks."""
    host, port = host_and_port(address)
    infos = socket.getaddrinfo(host or None, port, **_PASSIVE)
    for sock in _bind_found(infos, reuse_port=reuse_port, listening=False):
        sock.close()


def _bind_found(
    infos: Sequence[tuple[Any, ...]], *, reuse_port: bool, listening: bool
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, where in dict.fromkeys((info[0], info[4]) for info in infos):
            port = sockets[0].getsockname()[1] if sockets else where[1]
            target = (where[0], port, *where[2:])
            sockets.append(_bind_tcp(family, target, reuse_port=reuse_port, listening=listening))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_tcp(family: int, where: Any, *, reuse_port: bool, listening: bool) -> socket.socket:
    if listening:
        sock = socket.create_server(where, family=family, backlog=BACKLOG, reuse_port=reuse_port)
    else:
        sock = _bind_silently(family, where, reuse_port=reuse_port)
    sock.setblocking(False)
    return sock


def _bind_silently(family: int, where: Any, *, reuse_port: bool) -> socket.socket:
    """Bind like socket.create_server(), but do not listen."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        host, port, *rest = sock.getsockname()
        if where[1] != port:
            # The system chose the port, and would free it when the socket stops listening. A second
            # socket that names the port keeps it.
            with sock:
                return _bind_silently(family, (host, port, *rest), reuse_port=reuse_port)
    except OSError:
        sock.close()
        raise
    return sock
