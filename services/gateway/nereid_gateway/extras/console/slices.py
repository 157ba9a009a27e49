"""Long work in slices, so that requests are served in between. The processor time is measured."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

# Processor time of a slice. It is about the time of ten requests.
_SLICE_S: Final = 0.002


class Slices:
    """Adds up the processor time of `with` blocks. Long blocks should await pause() often."""

    def __init__(self) -> None:
        # Processor time, without the time of other tasks during pauses.
        self.total_s = 0.0
        self._began_s = 0.0

    def __enter__(self) -> None:
        self._began_s = time.thread_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.total_s += time.thread_time() - self._began_s

    async def pause(self) -> None:
        """Let other tasks run if the present slice has taken long enough."""
        took_s = time.thread_time() - self._began_s
        if took_s >= _SLICE_S:
            self.total_s += took_s
            await asyncio.sleep(0)
            self._began_s = time.thread_time()
