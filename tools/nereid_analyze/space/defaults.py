"""Defaults of a model where a candidate says nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelDefaults:
    """Defaults of a model.

    max_batch: rows that execute together. weight: executions per request.
    """

    instances: int = 1
    max_batch: int = 1
    delay_us: int = 0
    weight: float = 1.0
