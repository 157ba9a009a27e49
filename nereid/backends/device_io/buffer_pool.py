"""Pools of memory: allocating pinned or device memory stops the device.

A caller releases a buffer only after it has waited for the buffer's last copy.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MIN_CLASS: Final = 256
# Base-2 logarithm of the classes per power of two. At most a quarter of a buffer is unused.
_STEPS_LOG2: Final = 2


def size_class(size_bytes: int) -> int:
    """Return the size of the buffers that hold this many bytes."""
    if size_bytes <= _MIN_CLASS:
        return _MIN_CLASS
    step = 1 << ((size_bytes - 1).bit_length() - 1 - _STEPS_LOG2)
    return -(-size_bytes // step) * step


@dataclass(slots=True, eq=False)
class Buffer:
    """A piece of memory of one size class, compared by object identity."""

    address: int
    size_bytes: int


class BufferPool:
    """Buffers of one kind of memory, in size classes; only one thread may use the pool."""

    def __init__(
        self, allocate: Callable[[int], int], free: Callable[[int], None], max_idle_bytes: int
    ) -> None:
        """Create an empty pool; max_idle_bytes limits the unused bytes that it keeps."""
        self._allocate = allocate
        self._free = free
        self._max_idle_bytes = max_idle_bytes
        # Key: a size class. Value: its idle buffers, the last released at the end. Classes are in
        # the order of their last release.
        self._idle: OrderedDict[int, deque[Buffer]] = OrderedDict()
        self._used: set[Buffer] = set()
        self.idle_bytes = 0
        self.used_bytes = 0

    def acquire(self, size_bytes: int) -> Buffer:
        """Return a buffer of at least this size, with undefined content."""
        chosen = size_class(size_bytes)
        idle = self._idle.get(chosen)
        if idle:
            buffer = idle.pop()
            self.idle_bytes -= chosen
            if not idle:
                del self._idle[chosen]
        else:
            buffer = Buffer(self._allocate(chosen), chosen)
        self._used.add(buffer)
        self.used_bytes += chosen
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Release a buffer that nothing uses any more; raise KeyError if it is not in use."""
        self._used.remove(buffer)
        size = buffer.size_bytes
        self.used_bytes -= size
        if size > self._max_idle_bytes:
            self._free(buffer.address)
            return
        self._idle.setdefault(size, deque()).append(buffer)
        self._idle.move_to_end(size)
        self.idle_bytes += size
        while self.idle_bytes > self._max_idle_bytes:
            self._free_oldest()

    def close(self) -> None:
        """Free all buffers, even those in use; call this only once the device is idle."""
        while self._idle:
            self._free_oldest()
        for buffer in self._used:
            self._free(buffer.address)
        self._used.clear()
        self.used_bytes = 0

    def _free_oldest(self) -> None:
        size, idle = next(iter(self._idle.items()))
        buffer = idle.popleft()
        if not idle:
            del self._idle[size]
        self.idle_bytes -= size
        self._free(buffer.address)
