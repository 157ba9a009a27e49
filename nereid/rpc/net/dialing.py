"""Connections to addresses: to a Unix socket or a host, without encryption or with TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, TypeVar

from nereid.rpc.net.address import host_and_port, unix_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid.rpc.net.tls_files import Tls

    # Returns a host's IP addresses in the order to try; raises OSError if the look-up fails.
    LookUp = Callable[[str], Awaitable[list[str]]]

_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


def connect(address: str, timeout_s: float, tls: Tls | None = None) -> socket.socket:
    """Connect to an address; block until connected, or raise OSError."""
    path = unix_path(address)
    if path is None:
        connected = socket.create_connection(host_and_port(address), timeout_s)
    else:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(timeout_s)
    try:
        if path is None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        else:
            connected.connect(path)
        if tls is None:
            return connected
        return tls.context().wrap_socket(connected, server_hostname=_certificate_name(address, tls))
    except BaseException:
        connected.close()
        raise


async def look_up(host: str) -> list[str]:
    """Return a host's addresses from the system's resolver; raises OSError."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(_text_of(sockaddr) for *_, sockaddr in infos))
    return [host]


def _text_of(sockaddr: tuple[object, ...]) -> str:
    """Return a socket address as text. A link-local address includes its interface."""
    host, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) > 3 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host


class Dialer:
    """Dialler of one address, for one event loop.

    The time limit applies to each step: the look-up, and each attempt to connect. The resolver's
    thread cannot be interrupted, so the next connect() uses the result of a look-up that took too
    long.
    """

    def __init__(self, address: str, timeout_s: float, look_up: LookUp = look_up) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._look_up = look_up
        self._pending_lookup: asyncio.Future[list[str]] | None = None

    async def connect(self, factory: Callable[[], _Protocol], tls: Tls | None) -> _Protocol:
        """Connect and return the protocol; try a host's IP addresses in order.

        Raises TimeoutError, or OSError if the last attempt or the look-up failed.
        """
        loop = asyncio.get_running_loop()
        context = name = None
        if tls is not None:
            context, name = tls.context(), _certificate_name(self._address, tls)
        path = unix_path(self._address)
        if path is not None:
            async with asyncio.timeout(self._timeout_s):
                _, protocol = await loop.create_unix_connection(
                    factory, path, ssl=context, server_hostname=name
                )
            return protocol
        host, port = host_and_port(self._address)
        failure: OSError = TimeoutError()
        for ip_address in await self._addresses_of(host):
            try:
                async with asyncio.timeout(self._timeout_s):
                    _, protocol = await loop.create_connection(
                        factory, ip_address, port, ssl=context, server_hostname=name
                    )
            except OSError as error:
                failure = error
            else:
                return protocol
        try:
            raise failure
        finally:
            # It refers to this frame, and to those of its callers, until the garbage is collected.
            del failure

    async def close(self) -> None:
        """Cancel the look-up that is in progress."""
        if self._pending_lookup is not None:
            self._pending_lookup.cancel()
            await asyncio.gather(self._pending_lookup, return_exceptions=True)

    async def _addresses_of(self, host: str) -> list[str]:
        if self._pending_lookup is None:
            self._pending_lookup = asyncio.ensure_future(self._look_up(host))
        done, _ = await asyncio.wait({self._pending_lookup}, timeout=self._timeout_s)
        if not done:
            raise TimeoutError
        lookup, self._pending_lookup = self._pending_lookup, None
        try:
            return lookup.result()
        # DNS does not allow every name.
        except UnicodeError as error:
            raise OSError(str(error)) from error


def _certificate_name(address: str, tls: Tls) -> str:
    if tls.server_name is not None:
        return tls.server_name
    return "localhost" if unix_path(address) is not None else host_and_port(address)[0]
