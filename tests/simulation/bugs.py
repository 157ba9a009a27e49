"""Bugs that a simulation is given on purpose: it must find them."""

from __future__ import annotations

import random

from nereid.services.executor.batch.received_batches import ReceivedBatch, ReceivedBatches

NAMES = ("forgets-withdrawals", "responds-twice", "drops-responses")
# One execution in so many.
_SELDOM = 200


class _LastWithdrawn(ReceivedBatches[ReceivedBatch]):
    """Remembers only the batch that was withdrawn last."""

    def withdraw(self, number: int) -> bool:
        if not super().withdraw(number):
            return False
        self._withdrawn = {number}
        return True


class Bugs:
    """name: one of NAMES; empty: there is none."""

    def __init__(self, name: str, choices: random.Random) -> None:
        assert not name or name in NAMES, name
        self._name = name
        self._random = choices

    def received_batches(self) -> ReceivedBatches[ReceivedBatch]:
        return _LastWithdrawn() if self._name == "forgets-withdrawals" else ReceivedBatches()

    def copies(self) -> int:
        """How often a reply is sent."""
        if self._name == "responds-twice" and self._random.randrange(_SELDOM) == 0:
            return 2
        if self._name == "drops-responses" and self._random.randrange(_SELDOM) == 0:
            return 0
        return 1
