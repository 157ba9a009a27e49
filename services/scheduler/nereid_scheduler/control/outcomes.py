"""Lets a caller wait for the outcome of a change to what is desired for a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid_scheduler.core.models.desired_models import DesiredModels, Why

    # `None`: the model is now as desired.
    Outcome = asyncio.Future[NereidError | None]


def ask_for(desired: DesiredModels, name: str, why: Why, **rest: Any) -> Outcome:
    """Call `DesiredModels.add()`; return the outcome, for which the caller need not wait."""
    outcome: Outcome = asyncio.get_running_loop().create_future()

    def on_end(error: NereidError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    desired.add(name, why, on_end=on_end, **rest)
    return outcome
