"""A fake device in host memory. Enqueued work runs only when a caller waits for it.

A random generator chooses the order in which streams run, within the order that their events
require. If the code under test forgets an event, the device therefore gives wrong bytes, as a GPU
would now and then. Memory is filled with rubbish when it is allocated and when it is freed.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_RUBBISH = 0xA5


class HostDevice:
    """Implementation of Device (nereid/backends/device_io/device.py)."""

    def __init__(self, seed: int = 0, *, ignores_waits: bool = False) -> None:
        """Prepare a device.

        With `ignores_waits` streams do not wait for events, to see what breaks.
        """
        self._random = random.Random(seed)
        self._ignores_waits = ignores_waits
        self._memory: dict[int, Any] = {}
        self._pinned: set[int] = set()
        self._streams: dict[int, deque[Callable[[], bool]]] = {}
        # Number of records of each event, and the last record that is complete.
        self._recorded: dict[int, int] = {}
        self._completed: dict[int, int] = {}
        self._next = 1
        self.copied_bytes = 0
        self.copied_on_device_bytes = 0
        # Freed memory is kept, so that no address is used twice: a stale one is then an error of
        # this device.
        self._freed: list[Any] = []

    # ---- memory

    def allocate_device(self, size_bytes: int) -> int:
        """Allocate memory of the device, and return its address."""
        memory = (ctypes.c_uint8 * size_bytes)()
        address = ctypes.addressof(memory)
        ctypes.memset(address, _RUBBISH, size_bytes)
        self._memory[address] = memory
        return address

    def free_device(self, address: int) -> None:
        """Free memory of the device."""
        memory = self._memory.pop(address)
        ctypes.memset(address, _RUBBISH, len(memory))
        self._freed.append(memory)

    def allocate_pinned(self, size_bytes: int) -> int:
        """Allocate pinned memory of the host, and return its address."""
        address = self.allocate_device(size_bytes)
        self._pinned.add(address)
        return address

    def free_pinned(self, address: int) -> None:
        """Free pinned memory."""
        self._pinned.remove(address)
        self.free_device(address)

    @property
    def allocated_bytes(self) -> int:
        """Number of bytes that are allocated on the device."""
        return sum(map(len, self._memory.values()))

    # ---- streams and events

    def create_stream(self) -> int:
        """Create a stream."""
        self._streams[self._number()] = deque()
        return self._next - 1

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""
        assert not self._streams.pop(stream), "a stream is destroyed with work on it"

    def synchronize_stream(self, stream: int) -> None:
        """Run all work of a stream."""
        while self._streams[stream]:
            self.run_some()

    def create_event(self) -> int:
        """Create an event."""
        event = self._number()
        self._recorded[event] = self._completed[event] = 0
        return event

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        assert self._is_complete(event), "an event is destroyed before it is complete"
        del self._recorded[event], self._completed[event]

    def record_event(self, event: int, stream: int) -> None:
        """Enqueue a record of an event."""
        self._recorded[event] += 1
        number = self._recorded[event]

        def complete() -> bool:
            self._completed[event] = number
            return True

        self._streams[stream].append(complete)

    def wait_event(self, stream: int, event: int) -> None:
        """Enqueue a wait for an event."""
        if not self._ignores_waits:
            number = self._recorded[event]
            self._streams[stream].append(lambda: self._completed[event] >= number)

    def is_complete(self, event: int) -> bool:
        """Return whether an event is complete."""
        # Time passes while a caller polls.
        self.run_some()
        return self._is_complete(event)

    def _is_complete(self, event: int) -> bool:
        return self._completed[event] >= self._recorded[event]

    def synchronize_event(self, event: int) -> None:
        """Run work until an event is complete."""
        while not self._is_complete(event):
            self.run_some()

    # ---- work

    def copy_to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy to the device."""
        if not self._is_pinned(source):
            # A driver has read the source when the call returns.
            content = ctypes.string_at(source, size_bytes)
            self._enqueue_copy(stream, lambda: self._write(target, content))
        else:
            self._enqueue_copy(
                stream, lambda: self._write(target, ctypes.string_at(source, size_bytes))
            )
        self.copied_bytes += size_bytes

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy to the host."""
        self._enqueue_copy(stream, lambda: ctypes.memmove(target, source, size_bytes))

    def copy_on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy on the device."""
        self._enqueue_copy(
            stream, lambda: self._write(target, ctypes.string_at(source, size_bytes))
        )
        self.copied_on_device_bytes += size_bytes

    def enqueue_work(self, stream: int, work: Callable[[], object]) -> None:
        """Enqueue work that takes the place of a kernel."""
        self._enqueue_copy(stream, work)

    def run_some(self, steps: int = 1) -> None:
        """Run this many steps that are ready, on streams that the generator chooses."""
        for _ in range(steps):
            streams = [work for work in self._streams.values() if work]
            self._random.shuffle(streams)
            for work in streams:
                if work[0]():
                    work.popleft()
                    break
            else:
                assert not streams, "streams wait for each other"
                return

    def _enqueue_copy(self, stream: int, work: Callable[[], object]) -> None:
        def run() -> bool:
            work()
            return True

        self._streams[stream].append(run)

    def _write(self, target: int, content: bytes) -> None:
        assert self._owner(target, len(content)) is not None, "a write beside the device's memory"
        ctypes.memmove(target, content, len(content))

    def _owner(self, address: int, size_bytes: int) -> int | None:
        for start, memory in self._memory.items():
            if start <= address and address + size_bytes <= start + len(memory):
                return start
        return None

    def _is_pinned(self, address: int) -> bool:
        return self._owner(address, 1) in self._pinned

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
