"""TLS handshakes that are dear to the server, at a gRPC port with TLS."""

from __future__ import annotations

import ssl
from contextlib import ExitStack

from tests.support.hostile.attack import SERVED, Attack, Client, Target
from tests.support.hostile.raw_clients import RawClient


class _Hello(RawClient):
    """A connection that begins a handshake; the server's part of it costs a signature."""

    def __init__(self, address: str, source: str) -> None:
        super().__init__(address, source)
        self.received_bytes = 0
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        outgoing = ssl.MemoryBIO()
        handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing)
        try:
            handshake.do_handshake()
        except ssl.SSLWantReadError:
            self.hello = outgoing.read()

    def await_reply(self) -> None:
        """Until the server has taken its part of the handshake."""
        self.pump(until=lambda: self.received_bytes, limit_s=30)

    def on_received(self, data: bytes) -> None:
        self.received_bytes += len(data)


def _hellos(count: int, *, in_pieces: bool = False) -> Client:
    """So many handshakes at once; in pieces: all but a byte first, then all those bytes."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            clients = [_Hello(target.grpc, target.source) for _ in range(count)]
            for each in clients:
                stack.callback(each.abort)
            if in_pieces:
                for each in clients:
                    each.pump(each.hello[:-1])
                    each.hello = each.hello[-1:]
            for each in clients:
                each.socket.sendall(each.hello)
            for each in clients:
                each.await_reply()
            served = all(each.received_bytes for each in clients)
            return "grpc 0" if served else "waiting"

    return client


# Each with its harmless twin.
ATTACKS = (
    Attack("64 TLS handshakes at once", _hellos(64), SERVED),
    Attack("64 TLS handshakes in two pieces", _hellos(64, in_pieces=True), SERVED),
    Attack("two TLS handshakes", _hellos(2), SERVED),
)
