"""Detection of what a port serves, for commands that could not use it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from nereid.cli.time_limit import call_within
from nereid.rpc.net.address import authority_of, host_and_port, unix_path
from nereid.rpc.net.dialing import connect

HTTP: Final = "HTTP"
GRPC: Final = "gRPC"
METRICS: Final = "metrics"
# A server's usual ports, in the order in which they follow each other.
_PORTS: Final = {HTTP: 8000, GRPC: 8001, METRICS: 8002}
_TIMEOUT_S: Final = 1.0
_OK: Final = (b"HTTP/1.0 200 ", b"HTTP/1.1 200 ")
_MAX_BYTES: Final = 1 << 16
# Type of the frame that an HTTP/2 server sends first, and its place in the frame.
_SETTINGS: Final = 4
_TYPE_AT: Final = 3


def wrong_port(address: str, wanted: str) -> str:
    """Return what the port is, and where `wanted` is; "" if the port is not another one.

    Blocks for a few seconds at most; made for servers without TLS.
    """
    found = served_at(address)
    if found in ("", wanted):
        return ""
    if (found, wanted) == (METRICS, HTTP) and _response(address, "/v2").startswith(_OK):
        # Other servers than Triton have both on one port.
        return ""
    text = f"{address} is the {found} port of this server"
    at = _neighbour(address, found, wanted)
    return f"{text}; {wanted} is {at}" if at else f"{text}; give the one of {wanted}"


def served_at(address: str) -> str:
    """Return HTTP, GRPC or METRICS, or "" for a port that is none of them."""
    # No port wants credentials for this path, so that no refused call is logged.
    first = _response(address, "/metrics")
    if not first.startswith(b"HTTP/1."):
        is_http2 = first[_TYPE_AT : _TYPE_AT + 1] == bytes([_SETTINGS])
        return GRPC if is_http2 else ""
    return METRICS if b"\r\n\r\n# HELP" in first else HTTP


def _neighbour(address: str, found: str, wanted: str) -> str:
    """Return the address of the port that is wanted, at its usual place; "" if it is not there."""
    if unix_path(address) is not None:
        return ""
    host, port = host_and_port(address)
    shown = f"[{host}]" if ":" in host else host
    for candidate in (port - _PORTS[found] + _PORTS[wanted], _PORTS[wanted]):
        if served_at(f"{shown}:{candidate}") == wanted:
            return f"{shown}:{candidate}"
    return ""


def _response(address: str, path: str) -> bytes:
    """Return the first bytes of the response; b"" if there are none."""
    host = authority_of(address)
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    received = b""

    def read() -> None:
        nonlocal received
        with connect(address, _TIMEOUT_S) as connection:
            connection.sendall(request.encode())
            while len(received) < _MAX_BYTES and (data := connection.recv(_MAX_BYTES)):
                received += data

    # The bytes before a reset or a pause may be enough.
    with suppress(OSError, ValueError):
        call_within(_TIMEOUT_S, read)
    return received
