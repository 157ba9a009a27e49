"""The pipeline of batches through a device: copies in, compute, and copies out, on three streams.

A batch owns its memory until its outputs are copied, and the host waits for that before it reuses
the memory. Only one thread may use a pipeline.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from nereid.backends.device_io.buffer_pool import BufferPool
from nereid.backends.device_io.device import DeviceTensor
from nereid.backends.device_io.input_cache import InputCache
from nereid.core.errors import NereidError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.backends import TensorParts
    from nereid.backends.device_io.buffer_pool import Buffer
    from nereid.backends.device_io.captured_graphs import (
        CapturedGraph,
        CapturedGraphs,
    )
    from nereid.backends.device_io.device import Device
    from nereid.backends.device_io.input_cache import CachedInput
    from nereid.core.tensors.tensors import Array


class Session(Protocol):
    """An object that runs the model on tensors in device memory."""

    # Inputs that run() reads from host memory.
    host_inputs: frozenset[str]
    # True if inputs must be copied before run() is called.
    reads_early: bool

    def run(
        self, inputs: Mapping[str, DeviceTensor], outputs: Sequence[str]
    ) -> Sequence[DeviceTensor]:
        """Enqueue an execution on the compute stream; return outputs with memory of their own."""


class Streams(NamedTuple):
    """Streams of a device. Two or all three of them may be the same."""

    copy_in: int
    compute: int
    copy_out: int


class PipelineOptions(NamedTuple):
    """Options for executing a model's batches."""

    # If this is above 1, copies and compute overlap.
    depth: int = 1
    pinned_inputs: bool = True
    pinned_outputs: bool = True
    # 0 means no cache.
    cache_bytes: int = 0
    cached_from_bytes: int = 64 << 10
    # Limit for unused memory that is kept, for pinned and for device memory each.
    max_idle_bytes: int = 256 << 20


class _Slot:
    def __init__(self, device: Device) -> None:
        self.inputs_copied = device.create_event()
        self.computed = device.create_event()
        self.outputs_copied = device.create_event()
        self.buffers: list[tuple[BufferPool, Buffer]] = []
        self.cached: list[CachedInput] = []
        self.graph: CapturedGraph | None = None
        self.owners: list[object] = []
        self.arrays: list[Array] = []
        # Pinned memory that holds the arrays.
        self.outputs: list[Buffer] = []


class Pipeline:
    """The pipeline of one instance."""

    def __init__(
        self,
        device: Device,
        session: Session,
        streams: Streams,
        options: PipelineOptions,
        graphs: CapturedGraphs | None = None,
    ) -> None:
        self._device = device
        self._session = session
        self._streams = streams
        self._options = options
        self._graphs = graphs
        idle = options.max_idle_bytes
        self._pinned = BufferPool(device.allocate_pinned, device.free_pinned, idle)
        self._memory = BufferPool(device.allocate_device, device.free_device, idle)
        self.cache: InputCache | None = None
        if options.cache_bytes:
            self.cache = InputCache(
                options.cache_bytes,
                options.cached_from_bytes,
                self._memory.acquire,
                self._memory.release,
            )
        self._free = deque(_Slot(device) for _ in range(options.depth))
        self._in_flight: deque[_Slot] = deque()
        self.graphs_launched = 0
        # Pinned memory of the outputs that were collected last. The caller may still read it.
        self._collected: list[Buffer] = []

    @property
    def depth(self) -> int:
        """Maximum number of batches in flight."""
        return self._options.depth

    @property
    def has_graphs(self) -> bool:
        """True if graphs execute some of the instance's batches."""
        return self._graphs is not None

    def submit(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        """Enqueue a batch; raise NereidError, or IndexError if `depth` batches are in flight."""
        slot = self._free.popleft()
        new: list[CachedInput] = []
        device, streams = self._device, self._streams
        try:
            if self._graphs is not None:
                shapes = {name: tensor.shape for name, tensor in inputs.items()}
                slot.graph = self._graphs.acquire(shapes)
            bound = {
                name: self._copy_input(slot, name, tensor, new) for name, tensor in inputs.items()
            }
            device.record_event(slot.inputs_copied, streams.copy_in)
            device.wait_event(streams.compute, slot.inputs_copied)
            if self._session.reads_early:
                device.synchronize_event(slot.inputs_copied)
            results: Sequence[DeviceTensor]
            if slot.graph is None:
                results = self._session.run(bound, outputs)
            else:
                rows = next(iter(inputs.values())).shape[0] if inputs else 0
                slot.graph.launch()
                self.graphs_launched += 1
                results = slot.graph.results(outputs, rows)
            slot.owners += results
            device.record_event(slot.computed, streams.compute)
            device.wait_event(streams.copy_out, slot.computed)
            slot.arrays = [self._copy_output(slot, result) for result in results]
            device.record_event(slot.outputs_copied, streams.copy_out)
        except Exception:
            self._abort(slot, new)
            raise
        self._in_flight.append(slot)

    def is_complete(self) -> bool:
        """Return whether the outputs of the oldest batch are ready."""
        return self._device.is_complete(self._in_flight[0].outputs_copied)

    def collect(self) -> list[Array]:
        """Wait for and return the oldest batch's outputs, which are valid until the next call."""
        slot = self._in_flight.popleft()
        try:
            self._device.synchronize_event(slot.outputs_copied)
        finally:
            arrays, outputs = slot.arrays, slot.outputs
            self._release(slot)
            for buffer in self._collected:
                self._pinned.release(buffer)
            self._collected = outputs
        return arrays

    def close(self) -> None:
        """Wait until the device is idle, and free everything."""
        self._synchronize()
        for slot in (*self._in_flight, *self._free):
            for event in (slot.inputs_copied, slot.computed, slot.outputs_copied):
                self._device.destroy_event(event)
            slot.owners.clear()
        self._in_flight.clear()
        self._free.clear()
        self._graphs = None
        self._pinned.close()
        self._memory.close()

    def _copy_input(
        self, slot: _Slot, name: str, tensor: TensorParts, new: list[CachedInput]
    ) -> DeviceTensor:
        """Enqueue the copy of an input; append the cache entries that it fills to `new`."""
        parts, shape, dtype = tensor
        if name in self._session.host_inputs:
            return DeviceTensor(self._join(slot, parts).address, shape, dtype)
        cache = self.cache
        if cache is not None and len(parts) == 1 and slot.graph is None:
            entry = self._cached(slot, parts[0], new)
            if entry is not None:
                return DeviceTensor(entry.buffer.address, shape, dtype)
        if slot.graph is None:
            buffer = self._acquire(slot, self._memory, sum(map(len, parts)))
            target = DeviceTensor(buffer.address, shape, dtype)
        else:
            target = slot.graph.inputs[name]
        address = target.address
        adjacent: list[bytes | memoryview] = []
        for part in parts:
            entry = None
            if cache is not None and (len(parts) > 1 or slot.graph is not None):
                entry = self._cached(slot, part, new)
            if entry is None:
                adjacent.append(part)
                continue
            address = self._copy_parts(slot, address, adjacent)
            adjacent.clear()
            size_bytes = len(part)
            self._device.copy_on_device(
                address, entry.buffer.address, size_bytes, self._streams.copy_in
            )
            address += size_bytes
        self._copy_parts(slot, address, adjacent)
        return target

    def _cached(
        self, slot: _Slot, part: bytes | memoryview, new: list[CachedInput]
    ) -> CachedInput | None:
        cache = self.cache
        if cache is None or not cache.accepts(len(part)):
            return None
        entry, is_new = cache.find_or_add(part)
        if entry is not None:
            slot.cached.append(entry)
            if is_new:
                new.append(entry)
                self._copy_parts(slot, entry.buffer.address, [part])
        return entry

    def _copy_parts(self, slot: _Slot, target: int, parts: Sequence[bytes | memoryview]) -> int:
        """Enqueue copies of the parts to adjacent device memory; return the address after them."""
        size_bytes = sum(map(len, parts))
        if not size_bytes:
            return target
        copy, stream = self._device.copy_to_device, self._streams.copy_in
        if self._options.pinned_inputs:
            copy(target, self._join(slot, parts).address, size_bytes, stream)
            return target + size_bytes
        for part in parts:
            if len(part):
                array = np.frombuffer(part, np.uint8)
                slot.owners.append(array)
                copy(target, array.ctypes.data, len(part), stream)
                target += len(part)
        return target

    def _join(self, slot: _Slot, parts: Sequence[bytes | memoryview]) -> Buffer:
        buffer = self._acquire(slot, self._pinned, sum(map(len, parts)))
        host, offset = _host_bytes(buffer), 0
        for part in parts:
            end = offset + len(part)
            host[offset:end] = np.frombuffer(part, np.uint8)
            offset = end
        return buffer

    def _copy_output(self, slot: _Slot, result: DeviceTensor) -> Array:
        size_bytes = result.size_bytes
        array: Array
        if self._options.pinned_outputs and size_bytes:
            buffer = self._pinned.acquire(size_bytes)
            slot.outputs.append(buffer)
            host = _host_bytes(buffer)[:size_bytes]
            array = host.view(result.dtype).reshape(result.shape)
        else:
            array = np.empty(result.shape, result.dtype)
        if size_bytes:
            stream = self._streams.copy_out
            self._device.copy_to_host(array.ctypes.data, result.address, size_bytes, stream)
        return array

    def _acquire(self, slot: _Slot, pool: BufferPool, size_bytes: int) -> Buffer:
        buffer = pool.acquire(size_bytes)
        slot.buffers.append((pool, buffer))
        return buffer

    def _release(self, slot: _Slot) -> None:
        for pool, buffer in slot.buffers:
            pool.release(buffer)
        slot.buffers.clear()
        if self.cache is not None:
            for entry in slot.cached:
                self.cache.unpin(entry)
        slot.cached.clear()
        if slot.graph is not None and self._graphs is not None:
            self._graphs.release(slot.graph)
        slot.graph = None
        slot.owners.clear()
        slot.arrays, slot.outputs = [], []
        self._free.append(slot)

    def _abort(self, slot: _Slot, new: Sequence[CachedInput]) -> None:
        # After an error of the device, every call fails.
        with contextlib.suppress(NereidError):
            self._synchronize()
        outputs = slot.outputs
        self._release(slot)
        for buffer in outputs:
            self._pinned.release(buffer)
        if self.cache is not None:
            for entry in new:
                # The entry may not have received its content.
                self.cache.discard(entry)

    def _synchronize(self) -> None:
        wait: Callable[[int], None] = self._device.synchronize_stream
        for stream in dict.fromkeys(self._streams):
            wait(stream)


def _host_bytes(buffer: Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a buffer as an array. ctypes keeps a type for each size for ever."""
    memory = (ctypes.c_uint8 * buffer.size_bytes).from_address(buffer.address)
    return np.ctypeslib.as_array(memory)
