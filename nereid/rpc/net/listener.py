"""Listeners for any protocol at TCP ports or Unix sockets, also with TLS.

The event loop does not accept, because uvloop accepts one connection per turn: a thousand new
connections would wait for seconds. uvloop also drops failed handshakes without a log line and does
not limit handshakes per turn. A shared port needs a decision about each connection.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.address import client_of, text_of, unix_path
from nereid.rpc.net.binding import BACKLOG, UnixClaim, bind_all_tcp, bind_unix
from nereid.rpc.net.handshakes import HandshakeTurns, accept_tls
from nereid.rpc.net.limits.shared_accepts import AcceptDecision, AcceptDecisions
from nereid.rpc.net.tls_files import reason

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nereid.rpc.net.limits.connection_counts import ConnectionCounts
    from nereid.rpc.net.limits.shared_accepts import ConnectionShare
    from nereid.rpc.net.shared_ports import InheritedPort
    from nereid.rpc.net.tls_files import Tls

    Factory = Callable[[], asyncio.Protocol]

_log = logging.getLogger("nereid.rpc")

_ACCEPTS_AT_ONCE: Final = 64
# Pause while the process cannot open more files.
_PAUSE_S: Final = 0.5
# Any client can cause failed handshakes, so limit their log lines.
_LOG_INTERVAL_S: Final = 1.0
# A new connection is left this long to a process with fewer connections.
_YIELD_S: Final = 0.001


async def listen(  # noqa: PLR0913 (by keyword)
    factory: Factory,
    address: str,
    counts: ConnectionCounts | None = None,
    *,
    tls: Tls | None = None,
    reuse_port: bool = False,
    private: bool = False,
    inherited: InheritedPort | None = None,
) -> Listener:
    """Listen at host:port or unix:/path; raise OSError if that is not possible.

    `counts` limits the handshakes; the caller counts the connections. If `private` is True, only
    this user may connect to a Unix socket. Other processes may also serve the inherited sockets.
    """
    path = unix_path(address)
    claim = None
    if inherited is not None:
        sockets = inherited.sockets
    elif path is None:
        sockets = await bind_all_tcp(address, reuse_port=reuse_port)
    else:
        claim = UnixClaim(path)
        sockets = [bind_unix(path, private=private)]
        claim.bound()
    name = f"unix:{path}" if path is not None else text_of(sockets[0].getsockname())
    listener = Listener(name, claim)
    share = None if inherited is None else inherited.share
    if share is not None:
        share.set_open(0)
        if counts is not None:
            counts.share = share
    for sock in sockets:
        if inherited is not None:
            # An inherited socket is bound but does not listen yet.
            sock.listen(BACKLOG)
        listener.add_acceptor(_Acceptor(sock, factory, tls, counts, share))
    return listener


class Listener:
    """Listener at one address, until close()."""

    def __init__(self, address: str, claim: UnixClaim | None) -> None:
        # The listener's address has the actual port, even if the system chose the port.
        self.address = address
        self._claim = claim
        self._acceptors: list[_Acceptor] = []

    def add_acceptor(self, acceptor: _Acceptor) -> None:
        """Add the acceptor of one of the listener's sockets."""
        self._acceptors.append(acceptor)

    def close(self) -> None:
        """Stop accepting connections. Open connections are not affected."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        if self._claim is not None:
            self._claim.release()


class _Acceptor:
    """Acceptor at one socket.

    At a shared port, it leaves a connection to a process with fewer connections, but only for some
    milliseconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: Factory,
        tls: Tls | None,
        counts: ConnectionCounts | None,
        share: ConnectionShare | None = None,
    ) -> None:
        self._counts = counts
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._name = text_of(sock.getsockname())
        self._factory = factory
        self._tls = tls
        self._handshakes = HandshakeTurns()
        self._openings: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._decisions = AcceptDecisions(share)
        self._logged_at = -_LOG_INTERVAL_S
        self._unlogged = 0
        self._start_accepting()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._share is not None:
            self._share.close()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for opening in self._openings:
            opening.cancel()

    def _start_accepting(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _stop_accepting(self, pause_s: float, resume: Callable[[], None]) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._pause = self._loop.call_later(pause_s, resume)

    def _accept(self) -> None:
        for accepted_before in range(_ACCEPTS_AT_ONCE):
            decision = self._decisions.next_decision(accepted_before)
            if decision is AcceptDecision.LEAVE:
                return
            if decision is AcceptDecision.YIELD:
                self._stop_accepting(_YIELD_S, self._look_again)
                return
            try:
                accepted, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error(
                    "%s accepts no connections for now, next try in %.1f s: %s",
                    *(self._name, _PAUSE_S, error),
                )
                self._stop_accepting(_PAUSE_S, self._start_accepting)
                return
            self._open(accepted, text_of(peer))

    def _look_again(self) -> None:
        waits, _, _ = select.select((self._socket,), (), (), 0)
        self._decisions.on_yielded(waits=bool(waits))
        self._start_accepting()

    def _open(self, accepted: socket.socket, peer: str) -> None:
        if (
            self._tls is not None
            and self._counts is not None
            and not self._counts.begin_handshake(client_of(peer))
        ):
            accepted.close()
            return
        accepted.setblocking(False)
        if self._share is not None:
            self._share.begin_opening()
        opening = self._loop.create_task(self._connect(accepted, peer))
        self._openings.add(opening)
        opening.add_done_callback(self._on_opened)

    def _on_opened(self, opening: asyncio.Task[None]) -> None:
        self._openings.discard(opening)
        if self._share is not None:
            self._share.end_opening()

    async def _connect(self, accepted: socket.socket, peer: str) -> None:
        if self._tls is not None:
            await self._handshake(accepted, peer, self._tls)
            return
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except OSError as error:
            _log.debug("%s disconnected from %s at once: %s", peer, self._name, reason(error))

    async def _handshake(self, accepted: socket.socket, peer: str, tls: Tls) -> None:
        done = False
        try:
            await accept_tls(self._factory, accepted, peer, tls, self._handshakes)
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
