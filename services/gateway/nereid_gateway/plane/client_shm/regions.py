"""The registered regions of clients' shared memory, for one event loop.

A client registers a region once and names ranges of it in requests, instead of sending tensors.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from nereid.core.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unimplemented,
)
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.tensors.region_ranges import RegionRange
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_gateway.core.tensors.region_ranges import RegionRanges
    from nereid_gateway.core.tensors.tensor_memory import TensorMemory

DISABLED_MESSAGE: Final = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
SYSTEM: Final = "system"
CUDA: Final = "cuda"
# Triton's Python models have their memory in such objects.
_RESERVED: Final = "triton_python_backend_shm_region_"
_KIND_NAMES: Final = {SYSTEM: "system", CUDA: "CUDA"}
# Each region holds a file descriptor, and the connections need descriptors too.
MAX_REGIONS: Final = 4096
MAX_REQUEST_BYTES: Final = 1 << 30
# The largest size_t of Triton.
_MAX_SIZE_T: Final = (1 << 64) - 1
# A thread reads larger inputs.
_READ_AT_ONCE_BYTES: Final = 1 << 20
_TOO_MUCH: Final = (
    "inputs of {} bytes in shared memory are more than the {} of one request. Use"
    " --max-connection-bytes to increase the limit."
)


# Inputs from regions, as a request with only payloads.
ReadInputs = ClientRequest


class Memory(Protocol):
    """Memory of a region. The client that owns the memory may shrink it at any time."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a copy of a range, which is shorter if the memory has shrunk."""

    def write(self, offset: int, data: Any) -> bool:
        """Copy data to the offset; return `False` if the memory has shrunk."""

    def close(self) -> None:
        """Release the descriptor or mapping of the memory."""


@dataclass(frozen=True)
class Registration:
    """A client's registration. key and offset: system memory; device_id and handle: CUDA memory."""

    kind: str
    name: str
    size_bytes: int
    key: str = ""
    offset: int = 0
    device_id: int = 0
    handle: bytes = field(default=b"", repr=False)

    def check_key(self) -> None:
        """Raise InvalidArgument if the key of system memory is reserved or only slashes."""
        if self.kind != SYSTEM:
            return
        region, key = self.name, self.key
        name = key.lstrip("/")
        if not name:
            raise InvalidArgument(
                f"cannot register shared memory region '{region}' - invalid shm key '{key}'"
            )
        if name.startswith(_RESERVED):
            raise InvalidArgument(
                f"cannot register shared memory region '{region}' with key '{key}' as the key"
                f" contains the reserved prefix '{_RESERVED}'"
            )


class Region:
    """A registered region, which stays registered while a request that names it is in flight."""

    __slots__ = ("_on_unused", "_unregister_later", "memory", "registered", "registration", "users")

    def __init__(
        self,
        registration: Registration,
        memory: Memory,
        on_unused: Callable[[Region], None] | None = None,
    ) -> None:
        """on_unused: called when no request names a region that is to be unregistered."""
        self.registration = registration
        self.memory = memory
        # Requests in flight that name this region.
        self.users = 0
        self.registered = True
        self._unregister_later = False
        self._on_unused = on_unused

    def read(self, tensor_range: RegionRange) -> bytes:
        """Return a copy of the range. Raises InvalidArgument if the memory has shrunk."""
        data = self.memory.read(tensor_range.offset, tensor_range.size_bytes)
        if len(data) != tensor_range.size_bytes:
            raise _past_end(self.registration.name)
        return data

    def write(self, tensor_range: RegionRange, data: Any) -> None:
        """Write data to the beginning of the range.

        Raises InvalidArgument if the client has shrunk the memory. Raises NotFound if the region
        was unregistered while the request was decoded.
        """
        if not self.registered:
            raise _not_found(self.registration.name)
        if not self.memory.write(tensor_range.offset, data):
            raise _past_end(self.registration.name)

    @property
    def in_use(self) -> bool:
        """True if a request in flight names the region."""
        return self.users > 0

    def begin_use(self) -> None:
        """Count a request in flight that names the region."""
        self.users += 1

    def end_use(self) -> None:
        """Stop counting a request after its last response or its cancellation."""
        self.users -= 1
        if not self.users and self.unregistered_later and self._on_unused is not None:
            self._on_unused(self)

    @property
    def unregistered_later(self) -> bool:
        """True if the region is to be unregistered when no request names it."""
        return self._unregister_later

    def unregister_later(self) -> None:
        """Have the region unregistered as soon as no request names it."""
        self._unregister_later = True

    def unregister(self) -> None:
        """Close the memory. Call this only while no request names the region."""
        self.registered = False
        self.memory.close()


# Name of an output, its region, and the range within the region.
Placement = tuple[str, Region, RegionRange]


class RegionUse(NamedTuple):
    """Regions that a request names: `placements` of its outputs, and `regions` of all tensors."""

    placements: list[Placement]
    regions: list[Region]


class Regions:
    """The table of regions by name."""

    def __init__(
        self,
        *,
        allowed: bool,
        max_regions: int = MAX_REGIONS,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """Make an empty table. max_request_bytes: limit on one request's inputs in regions."""
        self.allowed = allowed
        self._max_regions = max_regions
        self._max_request_bytes = max_request_bytes
        self._regions: dict[str, Region] = {}
        self._threads = ThreadPoolExecutor(1, "regions")

    def check_allowed(self) -> None:
        """Raise Unimplemented if clients' shared memory is not allowed."""
        if not self.allowed:
            raise Unimplemented(DISABLED_MESSAGE)

    def register(self, registration: Registration, open_memory: Callable[[], Memory]) -> None:
        """Add a region. open_memory is called only if the region can be added.

        Raises AlreadyExists (same name), InvalidArgument (key), Unavailable (too many) or
        Unimplemented (not allowed).
        """
        self.check_allowed()
        registration.check_key()
        if registration.name in self._regions:
            raise AlreadyExists(f"shared memory region '{registration.name}' already in manager")
        if len(self._regions) >= self._max_regions:
            raise Unavailable(f"{self._max_regions} shared memory regions are registered already")
        self._add(registration, open_memory())

    def _add(self, registration: Registration, memory: Memory) -> None:
        self._put(Region(registration, memory, self._remove_unused))

    def _put(self, region: Region) -> None:
        self._regions[region.registration.name] = region

    def status(self, kind: str, name: str) -> list[Registration]:
        """Return a kind's regions by name, or only the named one. May raise NotFound."""
        if not name:
            known = sorted(self._regions.items())
            return [region.registration for _, region in known if region.registration.kind == kind]
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find {kind} shared memory region: '{name}'")
        if region.registration.kind != kind:
            actual_kind, wanted_kind = _KIND_NAMES[region.registration.kind], _KIND_NAMES[kind]
            raise NotFound(
                f"The region named '{name}' is registered as {actual_kind} shared memory,"
                f" not {wanted_kind} shared memory"
            )
        return [region.registration]

    def unregister(self, kind: str, name: str) -> None:
        """Remove one region, or all regions of a kind if name is empty. Ignore unknown regions.

        As in Triton, a region that requests in flight name is removed after the last of them.
        """
        for region in [*self._regions.values()]:
            registration = region.registration
            if registration.kind != kind or name not in {"", registration.name}:
                continue
            # A request that ends at another gateway meanwhile must see this, or leave it unused.
            region.unregister_later()
            if not region.in_use:
                self._remove(region)

    def _remove_unused(self, region: Region) -> None:
        """Remove a region that is to be unregistered, unless that has happened already."""
        if self._regions.get(region.registration.name) is region and not region.in_use:
            self._remove(region)

    def _remove(self, region: Region) -> None:
        del self._regions[region.registration.name]
        region.unregister()

    def close(self) -> None:
        """Close all regions, even those in use."""
        self._threads.shutdown(cancel_futures=True)
        regions, self._regions = self._regions, {}
        for region in regions.values():
            region.unregister()

    def find_region(self, tensor_range: RegionRange) -> Region:
        """Return the region that a range lies in.

        Raises InvalidArgument (outside), NotFound (no region) or Unimplemented (not allowed).
        """
        self.check_allowed()
        name, offset, size_bytes = tensor_range
        region = self._regions.get(name)
        if region is None:
            raise _not_found(name)
        if offset >= region.registration.size_bytes:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
        if offset + size_bytes > _MAX_SIZE_T:
            raise InvalidArgument(
                f"Integer overflow detected: byte_size ({size_bytes}) + offset ({offset}) exceeds"
                f" maximum value ({_MAX_SIZE_T}) for region '{name}'"
            )
        # Triton refuses an empty range at offset 0 with the same text.
        if not 0 < offset + size_bytes <= region.registration.size_bytes:
            raise _past_end(name)
        return region

    def resolve_ranges(
        self, request: ClientRequest, named: RegionRanges, read: ReadInputs | None = None
    ) -> bool:
        """Copy the inputs that are in regions into request, and set request.region_use.

        Return False if the inputs are large, so that `read` has to read them first. Raises
        NereidError if a range is wrong or the inputs are too large.
        """
        size_bytes = sum(tensor_range.size_bytes for _, tensor_range in named.inputs)
        if read is None and size_bytes > _READ_AT_ONCE_BYTES:
            for _, tensor_range in named.inputs:
                self.find_region(tensor_range)
            if size_bytes > self._max_request_bytes:
                raise InvalidArgument(_TOO_MUCH.format(size_bytes, self._max_request_bytes))
            return False
        regions = []
        for index, (position, tensor_range) in enumerate(named.inputs):
            region = self.find_region(tensor_range)
            if read is None:
                request.payloads[position] = region.read(tensor_range)
            elif request.lease is None or read.lease is None:
                request.payloads[position] = read.payloads[index]
            else:
                request.payloads[position] = bytes(tensor_bytes(read, read.payloads[index]))
            regions.append(region)
        if read is not None and request.lease is None:
            request.lease = read.lease
        placements = [
            (name, self.find_region(tensor_range), tensor_range)
            for name, tensor_range in named.outputs
        ]
        regions += [region for _, region, _ in placements]
        request.region_use = RegionUse(placements, regions)
        return True

    async def read(
        self,
        request: ClientRequest,
        named: RegionRanges,
        tensors: TensorMemory,
        hold: Callable[[int], None],
    ) -> None:
        """Copy large inputs into request without blocking the loop, in a segment if possible.

        Set request.region_use. hold: called with the number of bytes to keep; may raise an error.
        Raises NereidError as resolve_ranges does.
        """
        hold(sum(tensor_range.size_bytes for _, tensor_range in named.inputs))
        regions = [self.find_region(tensor_range) for _, tensor_range in named.inputs]
        # The regions stay registered until the request is resolved.
        for region in regions:
            region.begin_use()
        try:
            read = await self._read(named, regions, tensors)
            self.resolve_ranges(request, named, read)
        finally:
            for region in regions:
                region.end_use()

    async def _read(
        self, named: RegionRanges, regions: Sequence[Region], tensors: TensorMemory
    ) -> ReadInputs:
        loop = asyncio.get_running_loop()
        read = ClientRequest(0, b"", [])
        for (_, tensor_range), region in zip(named.inputs, regions, strict=True):
            if region.registration.kind != SYSTEM:
                read.payloads.append(region.read(tensor_range))
                continue
            reading = loop.run_in_executor(self._threads, region.read, tensor_range)
            # The descriptor must stay open until the thread has read, even if this is cancelled.
            region.begin_use()
            reading.add_done_callback(partial(_end_use, region))
            read.payloads.append(await asyncio.shield(reading))
        await tensors.stage_in_thread(read)
        return read


def _end_use(region: Region, _reading: object) -> None:
    region.end_use()


NO_REGIONS: Final = Regions(allowed=False)


class UnresolvedRegions(Regions):
    """Table of a decoder process: it accepts all names, which the gateway resolves later."""

    def find_region(self, tensor_range: RegionRange) -> Region:  # noqa: ARG002 - Regions' signature
        """Return a region without memory for any name."""
        self.check_allowed()
        return _UNRESOLVED


class _NoMemory:
    def read(self, offset: int, size_bytes: int) -> bytes:  # noqa: ARG002
        return b""

    def write(self, offset: int, data: Any) -> bool:  # noqa: ARG002
        return False

    def close(self) -> None:
        pass


NO_MEMORY: Final = _NoMemory()
_UNRESOLVED: Final = Region(Registration(SYSTEM, "", 0), NO_MEMORY)


def _not_found(name: str) -> NotFound:
    return NotFound(f"Unable to find shared memory region: '{name}'")


def _past_end(name: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid offset + byte size for shared memory region: '{name}'")
