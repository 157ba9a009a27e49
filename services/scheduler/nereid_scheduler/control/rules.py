"""The settings of model control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXPLICIT: Final = "explicit"
POLL: Final = "poll"
ALL_MODELS: Final = "*"


@dataclass(frozen=True)
class ModelControlRules:
    """initial_models: those to load at the start, in explicit mode."""

    mode: str = "none"
    initial_models: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    retries: int = 0
    # How long a load waits while no executor tries.
    no_executor_timeout_s: float = 30.0
    # Whether load requests may bring files.
    allow_model_files: bool = True
    # How long a model's requests may take to finish when another scheduler takes it over.
    hand_over_limit_s: float = 30.0
    # How long an unload waits for a load before it, which may never end.
    unload_patience_s: float = 30.0
