"""Tensors in system shared memory: one region for all inputs and one for outputs of each model."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.tensors.datatypes import SIZE_BYTES
from nereid.core.tensors.shapes import VARIABLE
from nereid.shm.segments import aligned
from nereid_perf.inputs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nereid_perf.inputs.plan import InputPlan, ModelPlan
    from nereid_perf.inputs.tensors import Tensor

_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - where shm_open() makes its files


class RegionServer(Protocol):
    """The calls to a server that regions need; implemented by nereid_perf.server.Server."""

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0
    ) -> None:
        """Register a region."""

    def unregister_system_shared_memory(self, name: str = "") -> None:
        """Unregister a region, or all regions."""


@dataclass(frozen=True, slots=True)
class RegionRange:
    """The part of a region that holds one tensor."""

    region: str
    offset: int
    byte_size: int

    def parameters(self) -> dict[str, str | int]:
        """Return the parameters with which a request refers to the range."""
        named: dict[str, str | int] = {
            "shared_memory_region": self.region,
            "shared_memory_byte_size": self.byte_size,
        }
        if self.offset:
            named["shared_memory_offset"] = self.offset
        return named


@dataclass(frozen=True, slots=True)
class Region:
    """A region to be created; `contents` maps an offset to the bytes there."""

    name: str
    byte_size: int
    contents: tuple[tuple[int, bytes], ...] = ()


def input_ranges(
    plan: InputPlan, index: int, requests: Iterable[Sequence[Tensor]]
) -> tuple[list[list[RegionRange]], Region]:
    """Return the range of each tensor of a model's requests, and the region with all of them."""
    name = f"{plan.region_prefix}-{index}-inputs"
    offset = 0
    ranges: list[list[RegionRange]] = []
    contents: list[tuple[int, bytes]] = []
    for tensors in requests:
        placed = []
        for tensor in tensors:
            placed.append(RegionRange(name, offset, len(tensor.raw)))
            contents.append((offset, tensor.raw))
            offset = aligned(offset + len(tensor.raw))
        ranges.append(placed)
    return ranges, Region(name, max(offset, 1), tuple(contents))


def output_ranges(
    plan: InputPlan, index: int, model: ModelPlan
) -> tuple[dict[str, RegionRange], Region]:
    """Map each output to the range for it; raise InputError if the outputs are unknown."""
    assert model.signature is not None, "the plan is resolved"
    specs = {output.name: output for output in model.signature.outputs}
    names = model.outputs or tuple(specs)
    if not names:
        raise InputError(
            f"--shared-memory: the metadata of model '{model.name}' has no outputs: name them with "
            "--requested-output"
        )
    region = f"{plan.region_prefix}-{index}-outputs"
    ranges: dict[str, RegionRange] = {}
    offset = 0
    for name in names:
        spec = specs.get(name)
        size = plan.output_region_bytes
        if spec is not None and VARIABLE not in spec.dims and spec.datatype in SIZE_BYTES:
            size = prod(spec.dims) * SIZE_BYTES[spec.datatype]
        size *= model.batch_size
        ranges[name] = RegionRange(region, offset, size)
        offset = aligned(offset + size)
    return ranges, Region(region, max(offset, 1))


@contextlib.contextmanager
def shared_regions(regions: Iterable[Region], server: RegionServer) -> Iterator[None]:
    """Create and register the regions; undo both at the end. May raise InputError."""
    with contextlib.ExitStack() as stack:
        for region in regions:
            _create(region, stack)
            server.register_system_shared_memory(region.name, f"/{region.name}", region.byte_size)
            stack.callback(_unregister, server, region.name)
        yield


def _unregister(server: RegionServer, name: str) -> None:
    # A server that has ended has no registrations any more.
    with contextlib.suppress(Exception):
        server.unregister_system_shared_memory(name)


def _create(region: Region, stack: contextlib.ExitStack) -> None:
    path = _DIRECTORY / region.name
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        stack.callback(path.unlink, missing_ok=True)
        try:
            # After truncate() alone, a write to a full file system would kill the server.
            os.posix_fallocate(descriptor, 0, region.byte_size)
            for offset, content in region.contents:
                _write(descriptor, content, offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"--shared-memory: {region.byte_size} bytes in {path}: {error.strerror}"
        ) from error


def _write(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
