"""Starts the worker of a lost model again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from nereid.core.errors import NereidError
from nereid.rpc.net.backoff import Backoff, BackoffOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

_log = logging.getLogger(__name__)

_Worker = TypeVar("_Worker")

_RESTARTS: Final = BackoffOptions(first_s=0.1, factor=2.0, largest_s=30.0)


def start_with_retries(
    start: Callable[[], _Worker],
    instance: str,
    stopping: Event,
    on_failure: Callable[[], None] | None = None,
) -> _Worker | None:
    """Return what `start` returns, after retries with back-off; `None` if `stopping` is set first.

    on_failure: called after each start that raised NereidError.
    """
    backoff = Backoff(_RESTARTS)
    while not stopping.is_set():
        try:
            return start()
        except NereidError as error:
            if on_failure is not None:
                on_failure()
            _log.warning("instance %s: its worker cannot be restarted: %s", instance, error.message)
        stopping.wait(backoff.next_delay_s())
    return None
