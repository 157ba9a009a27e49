"""How much shared memory a model's own requests can still use; models look for leaks by it."""

from __future__ import annotations

from ..connection.executor_connection import current_connection


class SharedMemory:
    """The segments of this worker."""

    def free_memory(self) -> int:
        """Bytes that no request in flight uses; 0: the model's requests have no shared memory."""
        return current_connection().segments.available


shared_memory = SharedMemory()
