"""Lets a caller wait for the outcome of a load, or of a change to what is desired for a model."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid.core.errors import NereidError
    from nereid_scheduler.core.models.desired_models import DesiredModels, Reason
    from nereid_scheduler.core.models.on_demand_models import PendingLoads

    # `None`: the model is now as desired.
    Outcome = asyncio.Future[NereidError | None]


def ask_for(desired: DesiredModels, name: str, reason: Reason, **rest: Any) -> Outcome:
    """Call `DesiredModels.add()`; return the outcome, for which the caller need not wait."""
    outcome, on_end = _new_outcome()
    desired.add(name, reason, on_end=on_end, **rest)
    return outcome


@contextmanager
def awaiting(pending: PendingLoads, names: Iterable[str]) -> Iterator[list[Outcome]]:
    """Wait for those loads of these models that are pending; yield their outcomes."""
    loads = [pending[name] for name in names if name in pending]
    outcomes = []
    for load in loads:
        outcome, on_end = _new_outcome()
        outcomes.append(outcome)
        load.on_end.append(on_end)
        load.waiters += 1
    try:
        yield outcomes
    finally:
        for load in loads:
            load.waiters -= 1


def _new_outcome() -> tuple[Outcome, Callable[[NereidError | None], None]]:
    outcome: Outcome = asyncio.get_running_loop().create_future()

    def on_end(error: NereidError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    return outcome, on_end
