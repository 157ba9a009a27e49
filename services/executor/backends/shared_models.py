"""What instances of one model file share on a device, for as long as one of them has it.

For modules and engines that several threads may use at a time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Thing = TypeVar("Thing")


class SharedByFile(Generic[Thing]):
    """One thing for each file, state of the file, and device; may be used by any thread."""

    def __init__(self) -> None:
        self._things: WeakValueDictionary[tuple[str, int, int, str], Thing] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, path: Path, device: str, make: Callable[[], Thing]) -> Thing:
        """What others have of this file, or what make makes. A file that changed is another."""
        state = path.stat()
        key = (str(path), state.st_mtime_ns, state.st_size, device)
        with self._lock:
            thing = self._things.get(key)
            if thing is None:
                thing = self._things[key] = make()
            return thing
