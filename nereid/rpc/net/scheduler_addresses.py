"""Addresses of a mesh's schedulers: a list that may contain names to look up in DNS.

Examples are "a:8003,b:8003", "unix:/path" and "dns:schedulers:8003". The last example stands for
every address that the name has, now and later, like the name of a headless service in Kubernetes.
Each scheduler needs an address of its own: behind an address that distributes connections,
schedulers could not be told apart.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.rpc.net.address import host_and_port, is_address, text_of, unix_path
from nereid.rpc.net.dialing import look_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    # Function that returns all addresses of a name, as "ip:port". It raises OSError if the name
    # cannot be looked up.
    Lookup = Callable[[str, int], Awaitable[list[str]]]

_log = logging.getLogger(__name__)

_DNS: Final = "dns:"
_LOOKUP_INTERVAL_S: Final = 3.0
# Seconds between look-ups until a name has been found for the first time. It is short because
# services start in any order.
_FIRST_INTERVAL_S: Final = 0.2


class AddressSpec(NamedTuple):
    """Element of the list: an address to dial, or a name that stands for several addresses."""

    text: str
    # True if `text` is a name, as host:port, that has to be looked up.
    is_dns: bool = False


def parse_addresses(text: str) -> list[AddressSpec]:
    """Return the elements of a comma-separated list, without duplicates.

    Raises:
        ValueError: an element is not an address.
    """
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
    """Return the text if parse_addresses() accepts it; otherwise raise ValueError.

    This is the parser of a flag.
    """
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
    """Yield all addresses in the order of the specs, at the start and after every change.

    If no name has to be looked up, the iterator ends after the first list. A name whose look-up
    fails keeps its previous addresses.

    first_interval_s: seconds between look-ups until every name has been found once.
    interval_s: seconds between later look-ups.
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
        # Names whose look-up is failing. A failure is logged once, until the look-up succeeds
        # again.
        self._failing: set[AddressSpec] = set()

    @property
    def complete(self) -> bool:
        """True if every name has been found at least once."""
        return len(self._addresses) == len(self.specs)

    def addresses(self, spec: AddressSpec) -> list[str]:
        return self._addresses.get(spec, [])

    async def refresh(self) -> None:
        for spec in self.specs:
            try:
                addresses = await self._lookup(*host_and_port(spec.text))
            # UnicodeError: the name may have a form that DNS does not allow.
            except (OSError, UnicodeError) as error:
                if spec not in self._failing:
                    self._failing.add(spec)
                    _log.warning("%s cannot be looked up: %s", spec.text, error)
            else:
                self._failing.discard(spec)
                # Sort the addresses: resolvers change the order, and equal sets must compare equal.
                self._addresses[spec] = sorted(addresses)


async def _look_up(host: str, port: int) -> list[str]:
    addresses = await look_up(host)
    # Take only the address family that this host prefers. A scheduler that has addresses of both
    # families would otherwise be dialled twice.
    is_ipv6 = ":" in addresses[0]
    return [text_of((address, port)) for address in addresses if (":" in address) == is_ipv6]
