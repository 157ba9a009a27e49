"""From an address to a connection: to a unix socket or a host, in clear or with TLS."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, TypeVar

from nereid.rpc.net.address import host_and_port, unix_path
from nereid.rpc.net.name_lookup import NameLookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.net.name_lookup import LookUp
    from nereid.rpc.net.tls_files import Tls

_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


def connect(address: str, timeout_s: float, tls: Tls | None = None) -> socket.socket:
    """Connect, and block meanwhile. Raises OSError."""
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


class Dialer:
    """Connects to one address, in an event loop.

    A look-up of the host's name has the time limit for itself, and so has each of its addresses:
    neither a slow resolver nor a host that is silent takes the others' time.
    """

    def __init__(self, address: str, timeout_s: float, look_up: LookUp) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._lookup = NameLookup(look_up)

    async def connect(self, factory: Callable[[], _Protocol], tls: Tls | None) -> _Protocol:
        """The protocol of a new connection; a host's addresses are tried in their order.

        Raises:
            TimeoutError: the time limit passed.
            OSError: the last address's error, or the resolver's.
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
        for each in await self._lookup.addresses(host, self._timeout_s):
            try:
                async with asyncio.timeout(self._timeout_s):
                    _, protocol = await loop.create_connection(
                        factory, each, port, ssl=context, server_hostname=name
                    )
            except OSError as error:
                failure = error
            else:
                return protocol
        raise failure

    async def close(self) -> None:
        """Give up what is being looked up."""
        await self._lookup.close()


def _certificate_name(address: str, tls: Tls) -> str:
    """The name that the server's certificate has to have; a unix socket's is localhost."""
    if tls.server_name is not None:
        return tls.server_name
    return "localhost" if unix_path(address) is not None else host_and_port(address)[0]
