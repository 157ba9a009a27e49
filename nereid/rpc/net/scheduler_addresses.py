"""Where the schedulers of a mesh are: a list of addresses, some of which may be looked up in DNS.

"a:8003,b:8003", "unix:/path" or "dns:schedulers:8003"; the last stands for every address that the
name has, now and later, as of a headless service in Kubernetes. Each address is dialled on its own:
behind one that distributes connections, several schedulers could not be told apart.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.rpc.net.address import host_and_port, is_address, text_of, unix_path
from nereid.rpc.net.dialing import look_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    # All addresses of a name, as "ip:port". Raises OSError.
    Lookup = Callable[[str, int], Awaitable[list[str]]]

_log = logging.getLogger(__name__)

_DNS: Final = "dns:"
_LOOKUP_INTERVAL_S: Final = 3.0
# Until a name has been found for the first time: services start in any order.
_FIRST_INTERVAL_S: Final = 0.2


class AddressSpec(NamedTuple):
    """One of the list: an address to dial, or a name that stands for several."""

    text: str
    # Look text up: it is host:port.
    is_dns: bool = False


def parse_addresses(text: str) -> list[AddressSpec]:
    """The specs in a list by commas, without repetitions. Raises ValueError."""
    specs = []
    for part in text.split(","):
        each = part.strip()
        is_dns = each.startswith(_DNS)
        address = each.removeprefix(_DNS)
        if not is_address(address) or (is_dns and unix_path(address) is not None):
            raise ValueError(
                "expected host:port, unix:/path or dns:host:port, or several of them with commas"
                " between them"
            )
        specs.append(AddressSpec(address, is_dns))
    return list(dict.fromkeys(specs))


def address_list(text: str) -> str:
    """A flag's parser: the text if parse_addresses() can read it. Raises ValueError."""
    parse_addresses(text)
    return text


def only_address(text: str) -> str | None:
    """The address, if the list has only one and that needs no DNS."""
    specs = parse_addresses(text)
    return specs[0].text if len(specs) == 1 and not specs[0].is_dns else None


async def watch_addresses(
    specs: Iterable[AddressSpec],
    *,
    interval_s: float = _LOOKUP_INTERVAL_S,
    first_interval_s: float = _FIRST_INTERVAL_S,
    lookup: Lookup | None = None,
) -> AsyncIterator[list[str]]:
    """The addresses, in the order of the specs, at the start and after every change; without DNS
    the iterator ends after the first.

    A name that cannot be looked up keeps the addresses that it had. first_interval_s: between
    lookups until every name has been found once, interval_s: from then on.
    """
    specs = list(specs)
    names = _Names([each for each in specs if each.is_dns], lookup or _look_up)
    current: list[str] | None = None
    while True:
        await names.refresh()
        found = (names.addresses(each) if each.is_dns else [each.text] for each in specs)
        addresses = list(dict.fromkeys(each for one in found for each in one))
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
        # Each failure is logged once.
        self._failing: set[AddressSpec] = set()

    @property
    def complete(self) -> bool:
        """Whether every name has been found at least once."""
        return len(self._addresses) == len(self.specs)

    def addresses(self, spec: AddressSpec) -> list[str]:
        return self._addresses.get(spec, [])

    async def refresh(self) -> None:
        for spec in self.specs:
            try:
                found = await self._lookup(*host_and_port(spec.text))
            # A name may be none that DNS can have.
            except (OSError, UnicodeError) as error:
                if spec not in self._failing:
                    self._failing.add(spec)
                    _log.warning("%s cannot be looked up: %s", spec.text, error)
            else:
                self._failing.discard(spec)
                # Resolvers shuffle them; an unchanged set must compare equal.
                self._addresses[spec] = sorted(found)


async def _look_up(host: str, port: int) -> list[str]:
    found = await look_up(host)
    # Of the family that this host prefers: a scheduler that has both would be dialled twice.
    is_ipv6 = ":" in found[0]
    return [text_of((each, port)) for each in found if (":" in each) == is_ipv6]
