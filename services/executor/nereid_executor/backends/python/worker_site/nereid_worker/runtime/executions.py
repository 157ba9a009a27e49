"""The batches that a worker executes; controls and the model's calls refer to batches."""

from __future__ import annotations

import contextvars
import threading
import weakref
from struct import Struct, pack_into
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .execution import BatchExecution

_LAST_BATCH = Struct("<Q")
# Number of the current coroutine's batch. Tasks that the coroutine starts inherit it.
current_batch: contextvars.ContextVar[int] = contextvars.ContextVar("batch", default=0)


class Executions:
    """The batches of one worker, until their last responses."""

    def __init__(self, memory: Any, *, decoupled: bool) -> None:
        self._memory = memory
        self._decoupled = decoupled
        self._open: weakref.WeakValueDictionary[int, BatchExecution] = weakref.WeakValueDictionary()
        # If set, caller_context() calls this function: the process serves the instance's stream.
        self.stream_context: Callable[[int | None], dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, execution: BatchExecution) -> None:
        """Add a batch; it is forgotten when nothing else refers to it."""
        self._open[execution.number] = execution

    def find(self, number: int) -> BatchExecution | None:
        """Return the batch of this number, or None if it is not open any more."""
        return self._open.get(number)

    def note_begun(self, number: int) -> None:
        """Write the number of the batch that begins to the shared memory."""
        _LAST_BATCH.pack_into(self._memory, 0, number)

    def note_running(self, ids: Sequence[int]) -> None:
        """Write the ids of the executing requests to the shared memory, as many as fit."""
        ids = ids[: (len(self._memory) - 2 * _LAST_BATCH.size) // _LAST_BATCH.size]
        pack_into(f"<{len(ids) + 1}Q", self._memory, _LAST_BATCH.size, len(ids), *ids)

    def caller_context(self) -> dict[str, Any]:
        """Describe the requests that the calling thread makes a call for.

        The result is empty if the executor already knows these requests.
        """
        # execute() itself runs only in the main thread.
        is_main = threading.current_thread() is threading.main_thread()
        batch = None if is_main else current_batch.get()
        if self.stream_context is not None:
            return self.stream_context(batch)
        executing = _LAST_BATCH.unpack_from(self._memory)[0]
        if self._decoupled or batch in (None, executing):
            return {}
        # Other threads may add batches at the same time, so the loop uses a copy.
        batches = [reference() for reference in self._open.valuerefs()]
        if any(
            other and other.number != executing and other.has_open_requests for other in batches
        ):
            return {"deadline_ns": 0, "caller_known": False}
        return {}
