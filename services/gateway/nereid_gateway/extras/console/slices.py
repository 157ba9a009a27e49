"""Long work in slices, so that requests are served between them; says what it took in all."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

# Of processor time: about what ten requests take.
_SLICE_S: Final = 0.002


class Slices:
    """Adds up the processor time of `with` blocks. Long work in them awaits pause() often, as
    between the items of a loop.
    """

    def __init__(self) -> None:
        # Processor time, without what others did in pauses.
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
        """Let others work, if this slice has been long enough."""
        took_s = time.thread_time() - self._began_s
        if took_s >= _SLICE_S:
            self.total_s += took_s
            await asyncio.sleep(0)
            self._began_s = time.thread_time()
