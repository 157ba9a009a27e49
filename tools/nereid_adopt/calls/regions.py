"""System shared memory that clients have registered through the proxy, and copies of its ranges."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.pb import kserve_pb2
from nereid_adopt.calls.kinds import GRPC_SERVICE
from nereid_adopt.calls.traffic import Side

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_adopt.calls.requests import RegionRange, RequestFacts

_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - where shm_open() makes its files
_HTTP: Final = re.compile(
    r"/v2/systemsharedmemory/(?:region/(?P<name>[^/?]*)/)?(?P<verb>register|unregister)(?:\?.*)?\Z"
)
_OLD_ONLY: Final = frozenset({Side.OLD})
_MAX_REGIONS: Final = 10_000


class _Region(NamedTuple):
    key: str
    offset: int
    byte_size: int
    # Servers that have registered it.
    sides: frozenset[Side]


class Regions:
    """Registered regions. Without a range's bytes, a request cannot be copied."""

    def __init__(self, directory: Path = _DIRECTORY, max_regions: int = _MAX_REGIONS) -> None:
        self._directory = directory
        self._max_regions = max_regions
        self._regions: dict[str, _Region] = {}
        self._descriptors: dict[str, int] = {}

    def on_http_change(self, target: bytes, body: bytes, sides: frozenset[Side]) -> None:
        """Note a call that registers or unregisters a region, with success at these sides."""
        found = _HTTP.match(target.decode("latin-1"))
        if found is None:
            return
        if found["verb"] == "unregister":
            self._forget(found["name"] or "")
            return
        with suppress(ValueError, KeyError, TypeError):
            document = json.loads(body)
            self._add(
                found["name"] or "",
                _Region(
                    str(document["key"]),
                    int(document.get("offset", 0)),
                    int(document["byte_size"]),
                    sides,
                ),
            )

    def on_grpc_change(self, path: str, message: bytes, sides: frozenset[Side]) -> None:
        """Note a call that registers or unregisters a region, with success at these sides."""
        with suppress(DecodeError):
            match path.removeprefix(GRPC_SERVICE):
                case "SystemSharedMemoryRegister":
                    added = kserve_pb2.SystemSharedMemoryRegisterRequest.FromString(message)
                    region = _Region(added.key, added.offset, added.byte_size, sides)
                    self._add(added.name, region)
                case "SystemSharedMemoryUnregister":
                    gone = kserve_pb2.SystemSharedMemoryUnregisterRequest.FromString(message)
                    self._forget(gone.name)

    def are_at(self, side: Side, facts: RequestFacts) -> bool:
        """Return whether a server has all regions of a request.

        Of those that were not registered through the proxy, only the old server has any.
        """
        return all(
            side in (_OLD_ONLY if region is None else region.sides)
            for ranges in (facts.input_ranges, facts.output_ranges)
            for part in ranges.values()
            for region in (self._regions.get(part.region),)
        )

    def read(self, ranges: Mapping[str, RegionRange]) -> dict[str, bytes] | None:
        """Return copies of the ranges, or `None` if one of them is not known or too long."""
        copies = {}
        for name, part in ranges.items():
            region = self._regions.get(part.region)
            if (
                region is None
                or min(part.offset, part.byte_size) < 0
                or part.offset + part.byte_size > region.byte_size
            ):
                return None
            # A mapping would end the process with SIGBUS if a client shortened the region.
            descriptor = self._open(region.key)
            content = (
                b""
                if descriptor is None
                else os.pread(descriptor, part.byte_size, region.offset + part.offset)
            )
            if len(content) != part.byte_size:
                return None
            copies[name] = content
        return copies

    def close(self) -> None:
        """Close the files of all regions."""
        self._forget("")

    def _add(self, name: str, region: _Region) -> None:
        if len(self._regions) < self._max_regions:
            self._close(region.key)
            self._regions[name] = region

    def _forget(self, name: str) -> None:
        """Forget a region, or all of them for the name ""."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                self._close(region.key)

    def _close(self, key: str) -> None:
        descriptor = self._descriptors.pop(key, None)
        if descriptor is not None:
            os.close(descriptor)

    def _open(self, key: str) -> int | None:
        descriptor = self._descriptors.get(key)
        name = key.removeprefix("/")
        # As shm_open(), which allows no other slash.
        if descriptor is not None or not name or "/" in name or name in {".", ".."}:
            return descriptor
        try:
            descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        self._descriptors[key] = descriptor
        return descriptor
