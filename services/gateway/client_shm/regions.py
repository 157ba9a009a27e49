"""The regions of clients' shared memory that this gateway knows: who is registered, and as what.

Clients register a region once and name ranges of it in requests, instead of sending and receiving
tensors. Decides only: how memory is reached is the business of the kinds of memory
(shared_memory_system, shared_memory_cuda). Belongs to one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from nereid.core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest

DISABLED_MESSAGE: Final = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
SYSTEM: Final = "system"
CUDA: Final = "cuda"
_TOLD_KINDS: Final = {SYSTEM: "system", CUDA: "CUDA"}
# Each holds a file descriptor, of which the gateway's connections want some as well.
MOST_REGIONS: Final = 4096


class Memory(Protocol):
    """What was registered: bytes from 0 on, as long as its client leaves them there."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """A copy of a range; shorter where the memory has shrunk."""

    def write(self, offset: int, data: Any) -> bool:
        """Copy data there; False where the memory has shrunk."""

    def close(self) -> None:
        """Let go of it."""


class Range(NamedTuple):
    """What a request says of where a tensor lies."""

    region: str
    offset: int
    size_bytes: int


class RegionUse(NamedTuple):
    """What the head of a request says of shared memory: inputs by position, outputs by name."""

    inputs: tuple[tuple[int, Range], ...]
    outputs: tuple[tuple[str, Range], ...]


@dataclass(frozen=True)
class Registration:
    """What a client registered; key and offset tell of system memory, device_id of CUDA's."""

    kind: str
    name: str
    size_bytes: int
    key: str = ""
    offset: int = 0
    device_id: int = 0


class Region:
    """A registered region. It is unregistered only when no request under way writes to it."""

    __slots__ = ("about", "awaits_end", "memory", "users")

    def __init__(self, about: Registration, memory: Memory) -> None:
        self.about = about
        self.memory = memory
        self.users = 0
        self.awaits_end = False

    def read(self, place: Range) -> bytes:
        """A copy of the range.

        Raises:
            InvalidArgument: the client took the memory away.
        """
        data = self.memory.read(place.offset, place.size_bytes)
        if len(data) != place.size_bytes:
            raise _past_end(self.about.name)
        return data

    def write(self, place: Range, data: Any) -> None:
        """Copy data to where the range begins.

        Raises:
            InvalidArgument: the client took the memory away.
        """
        if not self.memory.write(place.offset, data):
            raise _past_end(self.about.name)


# Where an output goes: its name, the region, the range of it.
Placement = tuple[str, Region, Range]


class Regions:
    """The table of regions, by name."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._regions: dict[str, Region] = {}

    def check_allowed(self) -> None:
        """Refuse where clients' shared memory is not allowed.

        Raises:
            Unimplemented: it is not.
        """
        if not self._allowed:
            raise Unimplemented(DISABLED_MESSAGE)

    def register(self, about: Registration, open_memory: Callable[[], Memory]) -> None:
        """Add a region; open_memory is called where nothing speaks against it.

        Raises:
            AlreadyExists: there is a region of that name.
            Internal: another region has the same key.
            Unavailable: there are too many regions.
            Unimplemented: clients' shared memory is not allowed.
        """
        self.check_allowed()
        if about.name in self._regions:
            raise AlreadyExists(f"shared memory region '{about.name}' already in manager")
        if about.kind == SYSTEM and any(
            each.about.kind == SYSTEM and each.about.key == about.key
            for each in self._regions.values()
        ):
            raise Internal(f"Invalid shared memory region: '{about.key}'")
        if len(self._regions) >= MOST_REGIONS:
            raise Unavailable(f"{MOST_REGIONS} shared memory regions are registered already")
        self._regions[about.name] = Region(about, open_memory())

    def status(self, kind: str, name: str) -> list[Registration]:
        """The regions of a kind by name, or the one of that name.

        Raises:
            NotFound: there is none, or it is of the other kind.
        """
        if not name:
            known = sorted(self._regions.items())
            return [region.about for _, region in known if region.about.kind == kind]
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find {kind} shared memory region: '{name}'")
        if region.about.kind != kind:
            is_kind, asked_kind = _TOLD_KINDS[region.about.kind], _TOLD_KINDS[kind]
            raise NotFound(
                f"The region named '{name}' is registered as {is_kind} shared memory,"
                f" not {asked_kind} shared memory"
            )
        return [region.about]

    def unregister(self, kind: str, name: str) -> None:
        """Remove the region of that name, or all of a kind; what is not there needs nothing."""
        for region in [self._regions.get(name)] if name else list(self._regions.values()):
            if region is not None and region.about.kind == kind:
                region.awaits_end = True
                self._end_unused(region)

    def close(self) -> None:
        """Let go of all regions, whoever uses them."""
        regions, self._regions = self._regions, {}
        for region in regions.values():
            region.memory.close()

    # --- requests -------------------------------------------------------------------------------

    def find(self, place: Range) -> Region:
        """The region of a range that lies inside it.

        Raises:
            InvalidArgument: it does not lie inside.
            NotFound: there is no such region.
            Unimplemented: clients' shared memory is not allowed.
        """
        self.check_allowed()
        name, offset, size_bytes = place
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name}'")
        if offset >= region.about.size_bytes:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
        # Of no bytes at the very beginning Triton says the same.
        if not 0 < offset + size_bytes <= region.about.size_bytes:
            raise _past_end(name)
        return region

    def use(self, request: InferRequest, named: RegionUse) -> None:
        """Copy the inputs that lie in regions into request, and note where its outputs go.

        Raises:
            NereidError: as find does, or a region has shrunk.
        """
        for position, place in named.inputs:
            request.payloads[position] = self.find(place).read(place)
        if named.outputs:
            request.placements = [(name, self.find(place), place) for name, place in named.outputs]

    def release(self, region: Region) -> None:
        """One request fewer writes to region."""
        region.users -= 1
        self._end_unused(region)

    def _end_unused(self, region: Region) -> None:
        name = region.about.name
        if region.awaits_end and not region.users and self._regions.get(name) is region:
            del self._regions[name]
            region.memory.close()


NO_REGIONS: Final = Regions(allowed=False)


def _past_end(name: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid offset + byte size for shared memory region: '{name}'")
