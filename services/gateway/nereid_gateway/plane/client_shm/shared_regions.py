"""The regions of a gateway that shares its ports with others of its host.

Clients do not know which gateway they are connected to: what they register at one is there at all,
and cannot be unregistered while a request names it at any of them. Each gateway opens a region's
memory itself: an object of the system through the gateway that opened it first, since its client
may have unlinked it, or given its name to another one.
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

    def __init__(self, registration: Registration, memory: Memory, file: RegionFile) -> None:
        super().__init__(registration, memory)
        self.file = file

    @property
    def in_use(self) -> bool:
        return self.users > 0 or not self.file.hold_alone()

    def begin_use(self) -> None:
        if not self.users and not self.file.hold():
            # Unregistered elsewhere, since it was found.
            self.registered = False
        self.users += 1

    def end_use(self) -> None:
        self.users -= 1
        if not self.users and self.registered:
            self.file.release()

    def unregister(self) -> None:
        """Its file is left to the other gateways."""
        super().unregister()
        self.file.close()


class SharedRegions(Regions):
    """The table of all gateways, as one of them sees it: up to date before each look."""

    _regions: dict[str, SharedRegion]  # type: ignore[assignment]

    def __init__(
        self,
        files: RegionFiles,
        *,
        max_regions: int = MAX_REGIONS,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """files: the table; it is closed with the regions."""
        super().__init__(allowed=True, max_regions=max_regions, max_request_bytes=max_request_bytes)
        self._files = files
        self._revision = -1

    def register(self, registration: Registration, open_memory: Callable[[], Memory]) -> None:
        with self._changing():
            super().register(registration, open_memory)

    def status(self, kind: str, name: str) -> list[Registration]:
        self._refresh()
        return super().status(kind, name)

    def unregister(self, kind: str, name: str) -> None:
        with self._changing():
            super().unregister(kind, name)

    def find_region(self, tensor_range: RegionRange) -> Region:
        self._refresh()
        return super().find_region(tensor_range)

    def close(self) -> None:
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
        self._put(SharedRegion(registration, memory, file))
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
                self._put(_open(file))
        self._revision = revision


def _description(registration: Registration, memory: Memory) -> bytes:
    """What another gateway needs to open the same memory."""
    handle = base64.b64encode(registration.handle).decode()
    source = memory.source() if isinstance(memory, SystemMemory) else None
    fields = dataclasses.asdict(registration) | {"handle": handle}
    return json.dumps({"registration": fields, "source": source}).encode()


def _open(file: RegionFile) -> SharedRegion:
    """A region that another gateway has registered. If its memory cannot be opened, it has none, as
    if the client had shrunk it.
    """
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
    return SharedRegion(registration, memory, file)
