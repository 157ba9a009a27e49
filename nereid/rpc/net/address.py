"""Addresses in text form: "host:port", "[v6]:port" or "unix:/path". The module does no I/O."""

from __future__ import annotations

import ipaddress
from typing import Final

_MAX_PORT: Final = 65535
# An IPv6 network with this prefix is one client, because a customer usually gets one.
_IPV6_CLIENT_BITS: Final = 64


def unix_path(address: str) -> str | None:
    """Return the path of a Unix socket's address, or None for a TCP address."""
    if not address.startswith("unix:"):
        return None
    return address[5:].removeprefix("//")


def is_local(address: str) -> bool:
    """Return whether an address is local, so that only processes of this host can use it."""
    if unix_path(address) is not None:
        return True
    host, _ = host_and_port(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(address: str) -> str:
    """Return an address without its port. A Unix socket's address is returned unchanged."""
    return address if unix_path(address) is not None else address.rpartition(":")[0]


def host_and_port(address: str) -> tuple[str, int]:
    """Split a TCP address; raise ValueError if it is not host:port."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{address!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def is_address(text: str) -> bool:
    """Return whether a text has the form host:port, [v6]:port or unix:/path."""
    path = unix_path(text)
    if path is not None:
        return bool(path)
    try:
        host, port = host_and_port(text)
    except ValueError:
        return False
    return bool(host) and port <= _MAX_PORT


def authority_of(address: str) -> str:
    """Return the :authority of requests to an address; it is localhost for a Unix socket."""
    return address if unix_path(address) is None else "localhost"


def text_of(peer: object) -> str:
    """Convert a socket's name, as the socket module returns it, to an address in text form."""
    if isinstance(peer, tuple):
        host, port = peer[0], peer[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(peer, bytes):
        peer = peer.decode("utf-8", "replace")
    return f"unix:{peer}"


def client_of(peer: str) -> str:
    """Return the client at a peer's address, for limits and rights: the host without the port.

    An IPv6 network of 64 bits is one client. An IPv4 host over IPv6 is the same client as over
    IPv4. Empty text stands for a Unix socket or a call within the process.
    """
    if peer.startswith("unix:"):
        return ""
    host, colon, _ = peer.rpartition(":")
    if not colon:
        return ""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host
    if not isinstance(address, ipaddress.IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return str(address)
    network = int(address) >> (128 - _IPV6_CLIENT_BITS) << (128 - _IPV6_CLIENT_BITS)
    return f"{ipaddress.IPv6Address(network)}/{_IPV6_CLIENT_BITS}"
