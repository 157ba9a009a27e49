"""TLS handshakes of accepted connections, a few in each turn of the event loop.

An RSA signature takes milliseconds, which block the loop. So the data of handshakes waits in a
queue that serves clients in turn.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.net.limits.fair_queue import FairQueue

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nereid.rpc.net.limits.fair_queue import Ticket
    from nereid.rpc.net.tls_files import Tls

# After this time, no more handshake data is processed in a turn.
_TURN_S: Final = 0.002
_BUFFER_BYTES: Final = 16_384


class HandshakeTurns:
    """Queue of handshake data at one address.

    The queue pauses for as long as each turn took, so handshakes use at most half of the time.
    """

    def __init__(self, turn_s: float = _TURN_S) -> None:
        self._turn_s = turn_s
        self._waiting = FairQueue["Callable[[], None]"]()
        self._next_turn: asyncio.Handle | None = None

    def add(self, peer: str, process: Callable[[], None]) -> Ticket[Callable[[], None]]:
        """Queue a call that handles data of the client `peer`, for a later turn."""
        ticket = self._waiting.add(peer, 0, process)
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._run_turn)
        return ticket

    def discard(self, ticket: Ticket[Callable[[], None]]) -> None:
        """Remove a queued call."""
        self._waiting.discard(ticket)

    def _run_turn(self) -> None:
        self._next_turn = None
        taken_s, start_s = 0.0, time.monotonic()
        while taken_s < self._turn_s and (process := self._waiting.take()) is not None:
            process()
            taken_s = time.monotonic() - start_s
        if self._waiting and self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_later(taken_s, self._run_turn)


async def accept_tls(
    factory: Callable[[], asyncio.Protocol],
    accepted: socket.socket,
    peer: str,
    tls: Tls,
    turns: HandshakeTurns,
) -> None:
    """Do the handshake, then connect a new protocol. Raise OSError if that fails or times out."""
    loop = asyncio.get_running_loop()
    transport, gate = await loop.connect_accepted_socket(lambda: _Gate(peer, turns), accepted)
    early = _EarlyData()
    handshake = loop.create_task(
        loop.start_tls(
            transport,
            early,
            tls.context(),
            server_side=True,
            ssl_handshake_timeout=tls.handshake_timeout_s,
        )
    )
    try:
        # The first step of the handshake makes TLS the transport's protocol, in place of the gate.
        while transport.get_protocol() is gate and not handshake.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        if not handshake.done():
            gate.stand_before(transport.get_protocol())
        secured = await handshake
    except BaseException:
        handshake.cancel()
        transport.abort()
        raise
    if secured is None or early.lost:
        raise ConnectionResetError
    protocol = factory()
    secured.set_protocol(protocol)
    protocol.connection_made(secured)
    if early.data and not secured.is_closing():
        protocol.data_received(bytes(early.data))
    gate.step_aside()


class _Gate(asyncio.BufferedProtocol):
    """Protocol between the socket and TLS until the handshake is done."""

    def __init__(self, peer: str, turns: HandshakeTurns) -> None:
        self._peer = peer
        self._turns = turns
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._transport: asyncio.Transport
        self._tls: Any = None
        self._received = bytearray()
        self._ticket: Ticket[Callable[[], None]] | None = None
        self._lost = False

    def stand_before(self, tls: asyncio.BaseProtocol) -> None:
        self._tls = tls
        self._transport.set_protocol(self)
        if self._lost:
            raise ConnectionResetError
        if self._received:
            self._wait_for_turn()

    def step_aside(self) -> None:
        if self._ticket is not None:
            self._turns.discard(self._ticket)
        self._process()
        if not self._lost and not self._transport.is_closing():
            self._transport.pause_reading()
            self._transport.set_protocol(self._tls)
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a socket

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += self._buffer[:nbytes]
        self._transport.pause_reading()
        if self._tls is not None and self._ticket is None:
            self._wait_for_turn()

    def eof_received(self) -> bool | None:
        if self._tls is None:
            return None
        ends: bool | None = self._tls.eof_received()
        return ends

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._ticket is not None:
            self._turns.discard(self._ticket)
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()

    def _wait_for_turn(self) -> None:
        self._ticket = self._turns.add(self._peer, self._process)

    def _process(self) -> None:
        self._ticket = None
        received, self._received = memoryview(self._received), bytearray()
        while received and not self._lost:
            place = self._tls.get_buffer(len(received))
            size = min(len(place), len(received))
            place[:size] = received[:size]
            self._tls.buffer_updated(size)
            received = received[size:]
        if not self._lost and not self._transport.is_closing():
            self._transport.resume_reading()


class _EarlyData(asyncio.Protocol):
    """Keeps application data that arrives with the end of the handshake."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (any reason)
        self.lost = True
