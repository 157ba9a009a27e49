"""Settings of model control: the mode, the models to load at the start, and time limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXPLICIT: Final = "explicit"
POLL: Final = "poll"
ALL_MODELS: Final = "*"


@dataclass(frozen=True)
class ModelControlRules:
    """Settings of model control, as flags give them."""

    mode: str = "none"
    initial_models: tuple[str, ...] = ()
    poll_interval_s: float = 15.0
    retries: int = 0
    # How long a load waits while no executor tries to load the model.
    no_executor_timeout_s: float = 30.0
    allow_model_files: bool = True
    # Time for a model's requests to finish when another scheduler takes the model over.
    hand_over_limit_s: float = 30.0
    # How long an unload waits for the load before it, which may never end.
    unload_patience_s: float = 30.0
