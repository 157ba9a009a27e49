"""Listening sockets for any protocol: TCP or unix, clear or TLS. Knows nothing of HTTP or gRPC.

A unix socket has the mode that the process's umask leaves, or 0600 if it is private. A stale one is
replaced, a live one is an error, and ours is removed on close.

TLS connections are accepted here rather than by the event loop, which drops failed handshakes
without a log line. A client that stalls in its handshake holds a socket for a few seconds and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import time
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.net.address import client_of, host_and_port, text_of, unix_path
from nereid.rpc.net.tls_files import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.net.connection_counts import ConnectionCounts
    from nereid.rpc.net.tls_files import Tls

    Factory = Callable[[], asyncio.Protocol]

_log = logging.getLogger("nereid.rpc")

_BACKLOG: Final = 1024
_HANDSHAKE_S: Final = 10.0
_ACCEPTS_AT_ONCE: Final = 64
# While the process may open no more files.
_PAUSE_S: Final = 0.5
# At most one log line about failed handshakes in this time: anybody can cause them.
_LOG_INTERVAL_S: Final = 1.0
_PROBE_S: Final = 1.0


async def listen(  # noqa: PLR0913 (by keyword)
    factory: Factory,
    address: str,
    counts: ConnectionCounts | None = None,
    *,
    tls: Tls | None = None,
    reuse_port: bool = False,
    private: bool = False,
) -> Listener:
    """Serve at host:port or unix:/path; raises OSError.

    counts: limits handshakes; the owner of the factory's protocols counts the connections.
    private: only this user may connect to a unix socket.
    """
    path = unix_path(address)
    if path is None:
        sockets, claim = await _bind_all_tcp(address, reuse_port=reuse_port), None
    else:
        claim = UnixClaim(path)
        sockets = [_bind_unix(path, private=private)]
        claim.bound()
    name = f"unix:{path}" if path is not None else text_of(sockets[0].getsockname())
    listener = Listener(name, claim)
    loop = asyncio.get_running_loop()
    for each in sockets:
        if tls is not None:
            listener.add_server(_TlsAcceptor(each, factory, tls, counts))
        elif path is None:
            listener.add_server(await loop.create_server(factory, sock=each, backlog=_BACKLOG))
        else:
            listener.add_server(await loop.create_unix_server(factory, sock=each, backlog=_BACKLOG))
    return listener


class Listener:
    """Serves one address until close()."""

    def __init__(self, address: str, claim: UnixClaim | None) -> None:
        # The real one, with the port that the system chose.
        self.address = address
        self._claim = claim
        self._servers: list[asyncio.Server | _TlsAcceptor] = []

    def add_server(self, server: asyncio.Server | _TlsAcceptor) -> None:
        self._servers.append(server)

    def close(self) -> None:
        """Accept no more; leave open connections alone."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._claim is not None:
            self._claim.release()


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


def _bind_unix(path: str, *, private: bool) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if private:
            # Linux gives the file the socket's own mode: there is no moment at which it is open.
            os.fchmod(sock.fileno(), 0o600)
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(error.errno or errno.EINVAL, f"{path}: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


async def _bind_all_tcp(address: str, *, reuse_port: bool) -> list[socket.socket]:
    """One socket for each of the host's addresses, all with the same port."""
    host, port = host_and_port(address)
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, where in dict.fromkeys((each[0], each[4]) for each in found):
            if sockets:
                port = sockets[0].getsockname()[1]
            each = (where[0], port, *where[2:])
            sockets.append(_bind_tcp(family, each, reuse_port=reuse_port))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_tcp(family: int, where: Any, *, reuse_port: bool) -> socket.socket:
    sock = socket.create_server(where, family=family, backlog=_BACKLOG, reuse_port=reuse_port)
    sock.setblocking(False)
    return sock


class _TlsAcceptor:
    """Accepts at one socket and hands each connection over when its handshake is done."""

    def __init__(
        self, sock: socket.socket, factory: Factory, tls: Tls, counts: ConnectionCounts | None
    ) -> None:
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._name = text_of(sock.getsockname())
        self._factory = factory
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._logged_at = -_LOG_INTERVAL_S
        self._unlogged = 0
        self._start_accepting()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _start_accepting(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error(
                    "%s accepts no connections for now, next try in %.1f s: %s",
                    *(self._name, _PAUSE_S, error),
                )
                self._loop.remove_reader(self._socket.fileno())
                self._pause = self._loop.call_later(_PAUSE_S, self._start_accepting)
                return
            name = text_of(peer)
            if self._counts is not None and not self._counts.begin_handshake(client_of(name)):
                accepted.close()
                continue
            accepted.setblocking(False)
            handshake = self._loop.create_task(self._handshake(accepted, name))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, peer: str) -> None:
        done = False
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                accepted,
                ssl=self._tls.context(),
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
            done = True
        except ConnectionResetError:
            _log.debug("%s disconnected during the TLS handshake with %s", peer, self._name)
        except OSError as error:
            self._log_failed_handshake(peer, reason(error))
        finally:
            if not done and self._counts is not None:
                self._counts.end_handshake(client_of(peer))

    def _log_failed_handshake(self, peer: str, why: str) -> None:
        now = time.monotonic()
        if now - self._logged_at < _LOG_INTERVAL_S:
            self._unlogged += 1
            return
        unlogged = self._unlogged
        others = f" (and {unlogged} others since the last such line)" if unlogged else ""
        self._logged_at, self._unlogged = now, 0
        _log.warning("%s refused the TLS connection of %s: %s%s", self._name, peer, why, others)
