"""Waiting for what becomes of a model that is desired."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.services.scheduler.reconciler.desired_models import DesiredModels, Why

    # None: the model is as desired.
    Outcome = asyncio.Future[NereidError | None]


def ask_for(desired: DesiredModels, name: str, why: Why, **rest: Any) -> Outcome:
    """As DesiredModels.add(). Returns what becomes of it."""
    outcome: Outcome = asyncio.get_running_loop().create_future()
    desired.add(name, why, on_end=outcome.set_result, **rest)
    return outcome
