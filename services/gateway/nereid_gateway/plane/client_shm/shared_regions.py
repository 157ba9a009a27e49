"""Regions of a gateway that shares its ports with other gateways of its host.

A client does not know its gateway, so a region exists at all gateways. A region stays registered
while a request at any gateway names it. A gateway opens system memory through the
gateway that opened it first, because the client may have unlinked the object or reused its name
since.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import NereidError, Unavailable
from nereid_gateway.plane.client_shm.cuda import open_cuda
from nereid_gateway.plane.client_shm.regions import (
    MAX_REGIONS,
    MAX_REQUEST_BYTES,
    NO_MEMORY,
    SYSTEM,
    Region,
    Regions,
    Registration,
)
from nereid_gateway.plane.client_shm.system import SystemMemory, reopen_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nereid_gateway.core.tensors.region_ranges import RegionRange
    from nereid_gateway.plane.client_shm.region_files import RegionFile, RegionFiles
    from nereid_gateway.plane.client_shm.regions import Memory

_log = logging.getLogger(__name__)

_FAILED: Final = "the shared memory regions of all gateways cannot be changed now"


class SharedRegion(Region):
    """A region of the shared table."""

    __slots__ = ("file",)

    def __init__(
        self,
        registration: Registration,
        memory: Memory,
        on_unused: Callable[[Region], None],
        file: RegionFile,
    ) -> None:
        super().__init__(registration, memory, on_unused)
        self.file = file

    @property
    def in_use(self) -> bool:
        """True if a request in flight at any gateway names the region."""
        return self.users > 0 or not self.file.hold_alone()

    def begin_use(self) -> None:
        """Count a request that names the region. The first one locks the region's file."""
        if not self.users and self.registered:
            # Another gateway may have unregistered the region after this gateway found it.
            self.registered = self.file.hold()
        self.users += 1

    def end_use(self) -> None:
        """Stop counting a request that named the region. The last one unlocks the file."""
        if self.users == 1 and self.registered:
            self.file.release()
        super().end_use()

    @property
    def unregistered_later(self) -> bool:
        """True if any gateway was asked to unregister the region when no request names it."""
        return self.registered and self.file.marked

    def unregister_later(self) -> None:
        """Have the gateway whose request names the region last unregister it."""
        self.file.mark()

    def unregister(self) -> None:
        """Close the memory and the file, but do not remove the file."""
        super().unregister()
        self.file.close()


class SharedRegions(Regions):
    """The shared table as one gateway sees it. The view is updated before each use."""

    _regions: dict[str, SharedRegion]  # type: ignore[assignment]

    def __init__(
        self,
        files: RegionFiles,
        *,
        max_regions: int = MAX_REGIONS,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """Make a view of the table in `files`. Closing the view closes `files`."""
        super().__init__(allowed=True, max_regions=max_regions, max_request_bytes=max_request_bytes)
        self._files = files
        self._revision = -1

    def register(self, registration: Registration, open_memory: Callable[[], Memory]) -> None:
        """Add a region for all gateways. Raises Unavailable if the table cannot be changed."""
        with self._changing():
            super().register(registration, open_memory)

    def status(self, kind: str, name: str) -> list[Registration]:
        """Return the regions of all gateways, as `Regions.status` does for a single gateway."""
        self._refresh()
        return super().status(kind, name)

    def unregister(self, kind: str, name: str) -> None:
        """Remove regions for all gateways. Raises Unavailable if the table cannot be changed."""
        with self._changing():
            super().unregister(kind, name)

    def _remove_unused(self, region: Region) -> None:
        try:
            with self._changing():
                super()._remove_unused(region)
        except Unavailable as error:
            _log.warning(
                "region %r is still registered: %s; the client can unregister it again",
                *(region.registration.name, error),
            )

    def find_region(self, tensor_range: RegionRange) -> Region:
        """Return the region that a range lies in. Any gateway may have registered it."""
        self._refresh()
        return super().find_region(tensor_range)

    def close(self) -> None:
        """Close all regions and this gateway's view of the table."""
        super().close()
        self._files.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._files.locked():
                self._refresh()
                yield
        except OSError as error:
            raise Unavailable(_FAILED) from error

    def _add(self, registration: Registration, memory: Memory) -> None:
        try:
            file = self._files.add(_description(registration, memory))
        except OSError:
            memory.close()
            raise
        self._put(SharedRegion(registration, memory, self._remove_unused, file))
        self._revision = self._files.revision

    def _remove(self, region: Region) -> None:
        assert isinstance(region, SharedRegion)
        self._files.remove(region.file)
        super()._remove(region)
        self._revision = self._files.revision

    def _refresh(self) -> None:
        revision = self._files.revision
        if revision == self._revision:
            return
        numbers = self._files.numbers()
        for region in [*self._regions.values()]:
            if region.file.number not in numbers:
                super()._remove(region)
        known = {region.file.number for region in self._regions.values()}
        for number in numbers:
            file = None if number in known else self._files.open(number)
            if file is not None:
                self._put(_open(file, self._remove_unused))
        self._revision = revision


def _description(registration: Registration, memory: Memory) -> bytes:
    handle = base64.b64encode(registration.handle).decode()
    source = memory.source() if isinstance(memory, SystemMemory) else None
    fields = dataclasses.asdict(registration) | {"handle": handle}
    return json.dumps({"registration": fields, "source": source}).encode()


def _open(file: RegionFile, on_unused: Callable[[Region], None]) -> SharedRegion:
    """Return a region. If its memory cannot be opened, it behaves like one without any bytes."""
    described: dict[str, Any] = json.loads(file.read())
    fields = described["registration"]
    fields["handle"] = base64.b64decode(fields["handle"])
    registration = Registration(**fields)
    memory: Memory = NO_MEMORY
    try:
        if registration.kind == SYSTEM:
            memory = reopen_system(registration, described["source"])
        else:
            memory = open_cuda(registration, registration.handle)
    except (NereidError, OSError) as error:
        _log.error(
            "memory of region %r, registered at another gateway, cannot be opened: %s; the client"
            " has to register it again",
            *(registration.name, error),
        )
    return SharedRegion(registration, memory, on_unused, file)
