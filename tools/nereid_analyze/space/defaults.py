"""The values of a model's settings that a candidate does not set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelDefaults:
    """Default values; max_batch: rows that execute together, weight: executions per request."""

    instances: int = 1
    max_batch: int = 1
    delay_us: int = 0
    weight: float = 1.0
