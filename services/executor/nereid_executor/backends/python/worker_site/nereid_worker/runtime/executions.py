"""What a worker's model executes: whom controls and calls to the mesh are for.

The number of the batch that was begun last, and the ids of the requests that are executing, are in
memory that is shared with the executor, which finds them also after the worker has died.
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
        """memory: shared with the executor."""
        self._memory = memory
        self._decoupled = decoupled
        # Those that the executor may send controls for.
        self._open: weakref.WeakValueDictionary[int, BatchExecution] = weakref.WeakValueDictionary()
        # While the instance's stream is served here: in place of caller_context().
        self.stream_context: Callable[[int | None], dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._open)

    def add(self, execution: BatchExecution) -> None:
        self._open[execution.number] = execution

    def find(self, number: int) -> BatchExecution | None:
        return self._open.get(number)

    def note_begun(self, number: int) -> None:
        """Leave the batch's number for the executor."""
        _LAST_BATCH.pack_into(self._memory, 0, number)

    def note_running(self, ids: Sequence[int]) -> None:
        """Likewise the ids of the requests that are executing, as many as there is room for."""
        ids = ids[: (len(self._memory) - 2 * _LAST_BATCH.size) // _LAST_BATCH.size]
        pack_into(f"<{len(ids) + 1}Q", self._memory, _LAST_BATCH.size, len(ids), *ids)

    def caller_context(self) -> dict[str, Any]:
        """On behalf of which requests this thread makes a call, where the executor cannot know."""
        # execute() itself runs in the main thread alone.
        is_main = threading.current_thread() is threading.main_thread()
        batch = None if is_main else current_batch.get()
        if self.stream_context is not None:
            return self.stream_context(batch)
        executing = _LAST_BATCH.unpack_from(self._memory)[0]
        if self._decoupled or batch in (None, executing):
            return {}
        # References, since other threads may add to them meanwhile.
        known = [each() for each in self._open.valuerefs()]
        if any(each and each.number != executing and each.has_open_requests for each in known):
            return {"deadline_ns": 0, "caller_known": False}
        return {}
