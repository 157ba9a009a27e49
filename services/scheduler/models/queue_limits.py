"""The limits that the settings set to every model version's queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """max_queue_size 0: any number of requests."""

    max_queue_size: int = 0
    max_retries: int = 2
    no_executor_timeout_s: float = 30.0
    # How many batches may wait at an instance that executes another: 0 or 1.
    waiting_batches: int = 1
