"""Limits that the settings set to every model version's queue. Knows no flag and no batcher."""

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
    """Limits of each version's queue. A max_queue_size of 0 means any number of requests."""

    max_queue_size: int = 0
    max_retries: int = 2
    no_executor_timeout_s: float = 30.0
    # Number of batches that may wait at an instance that executes another: 0 or 1.
    waiting_batches: int = 1
    # Adaptive admission: how long requests may queue if the model does not say (0 means any
    # time), and how long a queue may exceed that.
    admission_target_ms: int = 0
    admission_interval_ms: int = 100
    # Fraction of a model's slots that the sequences of one client may have; 1 means all.
    client_sequence_share: float = 1.0

    def admission_of(self, config: ModelConfig) -> AdmissionTarget | None:
        """Return the target of a model's queue, if it has adaptive admission."""
        target_ms = config.admission_target_ms
        if target_ms is None:
            target_ms = self.admission_target_ms
        # An ensemble's requests queue at its steps.
        if not target_ms or config.platform == ENSEMBLE_PLATFORM:
            return None
        return AdmissionTarget(target_ms * 1_000_000, self.admission_interval_ms * 1_000_000)
