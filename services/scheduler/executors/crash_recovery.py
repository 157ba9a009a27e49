"""What becomes of a batch whose instance's stream broke, where the instance's executor knows.

A worker that serves its model's stream itself may die with a batch in hand. Whether its model had
begun with it, its executor knows, which outlives it: then the batch fails, since models have side
effects; else it runs elsewhere. The executor's word and the stream's end come by different
connections, in either order. Knows no queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid.core.errors import error_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.messages import ErrorStatus
    from nereid.services.scheduler.executors.sessions import Placed, Session


class Fate(NamedTuple):
    """What an executor says of an instance that is lost."""

    # The last batch that its model had begun with.
    begun: int
    error_status: ErrorStatus


class Fates:
    """Settles the batches of lost instances, each once; placed: all instances that there are."""

    def __init__(self, placed: Mapping[int, Placed]) -> None:
        self._placed = placed
        # By instance: those that broke before their executor told, and why their batches would run
        # again.
        self._broken: dict[int, tuple[Placed, str]] = {}

    def closed(self, placed: Placed, cause: str) -> None:
        """An instance's stream broke."""
        instance = placed.instance
        fate, instance.fate = instance.fate, None
        knows = instance.vouched and fate is None and not placed.session.gone
        if knows and instance.at_work and placed.served.runtime is not None:
            placed.served.runtime.retire_instance(instance)
            self._broken[instance.id] = placed, cause
        else:
            _settle(placed, cause, fate)

    def told(self, session: Session, number: int, fate: Fate | None = None) -> None:
        """An executor says what became of an instance; without a fate: it begins nothing more of
        what it was given before.
        """
        broken = self._broken.get(number)
        if broken is not None:
            if broken[0].session is session:
                del self._broken[number]
                _settle(*broken, fate)
            return
        placed = self._placed.get(number)
        if placed is not None and placed.session is session and placed.instance.stream is not None:
            # What it answered before may still be on its way.
            placed.instance.fate = fate

    def left(self, session: Session) -> None:
        """An executor is gone: it tells nothing any more."""
        for number, (placed, _) in list(self._broken.items()):
            if placed.session is session:
                self.told(session, number)


def _settle(placed: Placed, cause: str, fate: Fate | None) -> None:
    runtime = placed.served.runtime
    if runtime is None:
        return
    if fate is not None:
        error = error_of(fate.error_status.code, fate.error_status.message, accepted=True)
        runtime.fail_begun(placed.instance, fate.begun, error)
    runtime.lose_instance(placed.instance, cause)
