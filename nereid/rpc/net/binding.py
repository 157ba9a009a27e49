"""Sockets bound to addresses, for who accepts there.

A unix socket has the mode that the process's umask leaves, or 0600 if it is private. A stale one is
replaced, a live one is an error, and ours is removed on close.
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

# Of connections that wait to be accepted; the system may allow less (net.core.somaxconn). All
# clients of a process that is being restarted wait there at once.
BACKLOG: Final = 4096
_PROBE_S: Final = 1.0
_PASSIVE: Final[Any] = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}


class UnixClaim:
    """A unix socket's path: removes a stale socket there, and ours when released."""

    def __init__(self, path: str) -> None:
        """Raises OSError if a live server listens at the path, or it is no socket."""
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
        """Our socket is bound now."""
        self._inode = os.stat(self._path).st_ino  # noqa: PTH116 (likewise)

    def release(self) -> None:
        """Remove the socket, if it still is ours."""
        with contextlib.suppress(OSError):
            if self._inode == os.stat(self._path).st_ino:  # noqa: PTH116 (likewise)
                os.unlink(self._path)  # noqa: PTH108 (likewise)


def _stale(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener whose queue is full makes a connection wait.
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def bind_unix(path: str, *, private: bool = False, listening: bool = True) -> socket.socket:
    """A socket at a path that is claimed; raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if private:
            # Linux gives the file the socket's own mode: there is no moment at which it is open.
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
    """One socket for each of the host's addresses, all with the same port; raises OSError."""
    host, port = host_and_port(address)
    found = await asyncio.get_running_loop().getaddrinfo(host or None, port, **_PASSIVE)
    return _bind_found(found, reuse_port=reuse_port, listening=listening)


def check_tcp(address: str, *, reuse_port: bool) -> None:
    """Raises OSError: nothing can listen there now. Blocks while the host is looked up."""
    host, port = host_and_port(address)
    found = socket.getaddrinfo(host or None, port, **_PASSIVE)
    for sock in _bind_found(found, reuse_port=reuse_port, listening=False):
        sock.close()


def _bind_found(
    found: Sequence[tuple[Any, ...]], *, reuse_port: bool, listening: bool
) -> list[socket.socket]:
    """found: by getaddrinfo()."""
    sockets: list[socket.socket] = []
    try:
        for family, where in dict.fromkeys((each[0], each[4]) for each in found):
            port = sockets[0].getsockname()[1] if sockets else where[1]
            each = (where[0], port, *where[2:])
            sockets.append(_bind_tcp(family, each, reuse_port=reuse_port, listening=listening))
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
    """As socket.create_server, but it does not listen."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        host, port, *rest = sock.getsockname()
        if where[1] != port:
            # A port that was not asked for by its number is given up when listening ends.
            with sock:
                return _bind_silently(family, (host, port, *rest), reuse_port=reuse_port)
    except OSError:
        sock.close()
        raise
    return sock
