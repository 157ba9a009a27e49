"""The batches that a worker's model executes; controls and calls to the mesh refer to them.

The number of the batch that was begun last, and the ids of the executing requests, are in memory
that is shared with the executor, so that the executor finds them after the worker has died.
"""

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
# The batch that a coroutine executes, inherited by the tasks that it starts.
current_batch: contextvars.ContextVar[int] = contextvars.ContextVar("batch", default=0)


class Executions:
    """The batches of one worker, until their last responses."""

    def __init__(self, memory: Any, *, decoupled: bool) -> None:
        """Keep the executing batch in memory that is shared with the executor."""
        self._memory = memory
        self._decoupled = decoupled
        # Batches that the executor may send controls for.
        self._open: weakref.WeakValueDictionary[int, BatchExecution] = weakref.WeakValueDictionary()
        # Replaces caller_context() while the instance's stream is served in this process.
        self.stream_context: Callable[[int | None], dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        """Return whether any batch is open."""
        return bool(self._open)

    def add(self, execution: BatchExecution) -> None:
        """Add a batch; it is forgotten when nothing else holds it any more."""
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
        """Describe the requests on whose behalf this thread makes a call.

        The result is empty if the executor knows that itself.
        """
        # execute() itself runs in the main thread alone.
        is_main = threading.current_thread() is threading.main_thread()
        batch = None if is_main else current_batch.get()
        if self.stream_context is not None:
            return self.stream_context(batch)
        executing = _LAST_BATCH.unpack_from(self._memory)[0]
        if self._decoupled or batch in (None, executing):
            return {}
        # The list of references is a copy, because other threads may add batches meanwhile.
        batches = [reference() for reference in self._open.valuerefs()]
        if any(
            other and other.number != executing and other.has_open_requests for other in batches
        ):
            return {"deadline_ns": 0, "caller_known": False}
        return {}
