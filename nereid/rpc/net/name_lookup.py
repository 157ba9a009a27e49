"""The addresses of a name, for who dials it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    # All IP addresses of a host in the order in which to try them. Raises OSError.
    LookUp = Callable[[str], Awaitable[list[str]]]


async def look_up(host: str) -> list[str]:
    """Ask the system's resolver; an IP address is its own. Raises OSError."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(_text_of(sockaddr) for *_, sockaddr in found))
    return [host]


class NameLookup:
    """Looks up a host, always the same, one look-up at a time.

    A resolver's thread cannot be interrupted: of a look-up that takes longer than its caller waits,
    the next caller gets the result, as one begun anew would be as slow.
    """

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._task: asyncio.Future[list[str]] | None = None

    async def addresses(self, host: str, timeout_s: float) -> list[str]:
        """The host's addresses, in the order in which to try them.

        Raises:
            TimeoutError: the resolver has not replied within timeout_s.
            OSError: there are none.
        """
        if self._task is None:
            self._task = asyncio.ensure_future(self._look_up(host))
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            raise TimeoutError
        task, self._task = self._task, None
        try:
            return task.result()
        # A name may be none that DNS can have.
        except UnicodeError as error:
            raise OSError(str(error)) from error

    async def close(self) -> None:
        """Give up what is being looked up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _text_of(sockaddr: tuple[object, ...]) -> str:
    """An address without its port; link-local ones are of an interface."""
    host, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) > 3 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host
