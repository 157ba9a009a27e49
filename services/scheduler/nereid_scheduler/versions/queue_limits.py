"""Limits that the settings define for the queue of every model version."""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid_scheduler.batching.queue_control import AdmissionTarget

if TYPE_CHECKING:
    from nereid.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of each version's queue. A max_queue_size of 0 means no limit."""

    max_queue_size: int = 0
    max_retries: int = 2
    no_executor_timeout_s: float = 30.0
    # Batches that may wait at an instance while it executes another one: 0 or 1.
    waiting_batches: int = 1
    # Adaptive admission: how long requests may queue, and how long a queue may exceed that.
    admission_target_ms: int = 0
    admission_interval_ms: int = 100
    # Maximum fraction of a model's slots for one client's sequences.
    client_sequence_share: float = 1.0

    def admission_of(self, config: ModelConfig) -> AdmissionTarget | None:
        """Return the admission target of a model's queue; `None` without adaptive admission."""
        target_ms = config.admission_target_ms
        if target_ms is None:
            target_ms = self.admission_target_ms
        # The requests of an ensemble wait in the queues of the models of its steps.
        if not target_ms or config.platform == ENSEMBLE_PLATFORM:
            return None
        return AdmissionTarget(target_ms * 1_000_000, self.admission_interval_ms * 1_000_000)
