"""Addresses of a mesh's schedulers: "a:8003,b:8003", "unix:/path" or "dns:schedulers:8003".

A dns name stands for all of its addresses, now and later. Each scheduler needs its own address:
behind a load balancer, schedulers could not be told apart.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.rpc.net.address import host_and_port, is_address, text_of, unix_path
from nereid.rpc.net.dialing import look_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    # Returns all addresses of a name as "ip:port"; raises OSError.
    Lookup = Callable[[str, int], Awaitable[list[str]]]

_log = logging.getLogger(__name__)

_DNS: Final = "dns:"
_LOOKUP_INTERVAL_S: Final = 3.0
# Interval until each name has been found once. Short, because services start in any order.
_FIRST_INTERVAL_S: Final = 0.2


class AddressSpec(NamedTuple):
    """Element of the list: an address, or a name for several addresses."""

    text: str
    # True if `text` is a name (host:port) to look up.
    is_dns: bool = False


def parse_addresses(text: str) -> list[AddressSpec]:
    """Return the elements of a comma-separated list; raise ValueError for a bad one."""
    specs = []
    for part in text.split(","):
        entry = part.strip()
        is_dns = entry.startswith(_DNS)
        address = entry.removeprefix(_DNS)
        if not is_address(address) or (is_dns and unix_path(address) is not None):
            raise ValueError(
                "expected host:port, unix:/path or dns:host:port, or several of them with commas"
                " between them"
            )
        specs.append(AddressSpec(address, is_dns))
    return list(dict.fromkeys(specs))


def address_list(text: str) -> str:
    """Parse a flag: return the text if parse_addresses() accepts the text."""
    parse_addresses(text)
    return text


def only_address(text: str) -> str | None:
    """Return the only address of the list; None if there are several, or if it needs DNS."""
    specs = parse_addresses(text)
    return specs[0].text if len(specs) == 1 and not specs[0].is_dns else None


async def watch_addresses(
    specs: Iterable[AddressSpec],
    *,
    interval_s: float = _LOOKUP_INTERVAL_S,
    first_interval_s: float = _FIRST_INTERVAL_S,
    lookup: Lookup | None = None,
) -> AsyncIterator[list[str]]:
    """Yield all addresses at the start and after every change.

    Without names to look up, the iterator ends after the first list. If a look-up fails, the name
    keeps its previous addresses. first_interval_s applies until every name has been found.
    """
    specs = list(specs)
    names = _Names([spec for spec in specs if spec.is_dns], lookup or _look_up)
    current: list[str] | None = None
    while True:
        await names.refresh()
        lists = (names.addresses(spec) if spec.is_dns else [spec.text] for spec in specs)
        addresses = list(dict.fromkeys(address for group in lists for address in group))
        if addresses != current:
            current = addresses
            yield list(addresses)
        if not names.specs:
            return
        await asyncio.sleep(interval_s if names.complete else first_interval_s)


class _Names:
    def __init__(self, specs: list[AddressSpec], lookup: Lookup) -> None:
        self.specs = specs
        self._lookup = lookup
        self._addresses: dict[AddressSpec, list[str]] = {}
        # A failure is logged once, until the look-up succeeds again.
        self._failing: set[AddressSpec] = set()

    @property
    def complete(self) -> bool:
        return len(self._addresses) == len(self.specs)

    def addresses(self, spec: AddressSpec) -> list[str]:
        return self._addresses.get(spec, [])

    async def refresh(self) -> None:
        for spec in self.specs:
            try:
                addresses = await self._lookup(*host_and_port(spec.text))
            # UnicodeError: DNS does not allow every name.
            except (OSError, UnicodeError) as error:
                if spec not in self._failing:
                    self._failing.add(spec)
                    _log.warning("%s cannot be looked up: %s", spec.text, error)
            else:
                self._failing.discard(spec)
                # Resolvers change the order, and equal sets must compare equal.
                self._addresses[spec] = sorted(addresses)


async def _look_up(host: str, port: int) -> list[str]:
    addresses = await look_up(host)
    # Take only the family that this host prefers, or a scheduler with both would be dialled twice.
    is_ipv6 = ":" in addresses[0]
    return [text_of((address, port)) for address in addresses if (":" in address) == is_ipv6]
