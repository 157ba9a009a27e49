"""Bugs that a simulation is given on purpose: it must find them."""

from __future__ import annotations

import random

from nereid.core.messages import InferRequest
from nereid.services.executor.batch.begun_batches import BegunBatches

NAMES = (
    "forgets-withdrawals",
    "responds-twice",
    "drops-responses",
    "resends-unmarked",
)
# One execution in so many.
_SELDOM = 200


class _LastWithdrawn(BegunBatches):
    """Remembers only the batch that was withdrawn last."""

    def withdraw(self, batch: int) -> bool:
        if not super().withdraw(batch):
            return False
        self._withdrawn = {batch}
        return True


class _NeverResent(InferRequest):
    """Sent again as if it were the first time."""

    __slots__ = ()

    @property
    def resent(self) -> bool:
        return False

    @resent.setter
    def resent(self, value: bool) -> None:
        pass


class Bugs:
    """name: one of NAMES; empty: there is none."""

    def __init__(self, name: str, choices: random.Random) -> None:
        assert not name or name in NAMES, name
        self._name = name
        self._random = choices

    def begun_batches(self) -> BegunBatches:
        return _LastWithdrawn() if self._name == "forgets-withdrawals" else BegunBatches()

    @property
    def request_type(self) -> type[InferRequest]:
        """Of what gateways send."""
        return _NeverResent if self._name == "resends-unmarked" else InferRequest

    def copies(self) -> int:
        """How often a reply is sent."""
        if self._name == "responds-twice" and self._random.randrange(_SELDOM) == 0:
            return 2
        if self._name == "drops-responses" and self._random.randrange(_SELDOM) == 0:
            return 0
        return 1
