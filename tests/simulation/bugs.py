"""Bugs that a simulation is given on purpose: it must find them within a few seeds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid_executor.batch.lifecycle.received_batches import ReceivedBatch, ReceivedBatches
from nereid_executor.instances.claims.model_claims import ModelClaims
from nereid_gateway.core.client_request import ClientRequest
from nereid_scheduler.control.state.file_store import FileStore

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable, Mapping

    from nereid_executor.instances.claims.model_claims import Grant, Rank
    from nereid_scheduler.control.state.file_store import CallQueue
    from nereid_scheduler.control.state.files import StateFiles

NAMES = (
    "responds-twice",
    "drops-responses",
    "resends-unmarked",
    "acknowledges-before-writing",
    "shares-models",
    "keeps-claims",
    "continues-numbers",
)
_WRITTEN_AFTER_S = 5.0
# One execution in so many.
_SELDOM = 200


class _NeverResent(ClientRequest):
    """Sent again as if it were the first time."""

    __slots__ = ()

    @property
    def resent(self) -> bool:
        return False

    @resent.setter
    def resent(self, value: bool) -> None:
        pass


class _EarlyStore(FileStore):
    """Acknowledges what it has not written yet."""

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        work = super().write(name, record, expected, files)
        loop = asyncio.get_running_loop()
        loop.call_later(_WRITTEN_AFTER_S, lambda: loop.create_task(work))


class _SharingClaims(ModelClaims):
    """Has two schedulers have instances of a model."""

    def claim(self, model: str, session: Hashable, instance: int, rank: Rank) -> bool:
        super().claim(model, session, instance, rank)
        return True


class _KeepingClaims(ModelClaims):
    """Releases no claim before the executor's end."""

    def release(self, model: str, session: Hashable, instance: int) -> list[Grant]:
        return []

    def expire(self, session: Hashable) -> list[Grant]:
        return []


class Bugs:
    """name: one of NAMES; empty: there is none."""

    def __init__(self, name: str, choices: random.Random) -> None:
        assert not name or name in NAMES, name
        self._name = name
        self._random = choices

    @property
    def request_type(self) -> type[ClientRequest]:
        """Of what gateways send."""
        return _NeverResent if self._name == "resends-unmarked" else ClientRequest

    def open_store(self, files: StateFiles, calls: CallQueue) -> FileStore:
        """Of a scheduler's state."""
        early = self._name == "acknowledges-before-writing"
        return _EarlyStore(files, calls) if early else FileStore(files, calls)

    def next_received(
        self, before: ReceivedBatches[ReceivedBatch]
    ) -> ReceivedBatches[ReceivedBatch]:
        """For an instance's next tenure."""
        return before if self._name == "continues-numbers" else ReceivedBatches()

    def model_claims(self) -> ModelClaims:
        kinds = {"shares-models": _SharingClaims, "keeps-claims": _KeepingClaims}
        return kinds.get(self._name, ModelClaims)()

    def copies(self) -> int:
        """How often a reply is sent."""
        if self._name == "responds-twice" and self._random.randrange(_SELDOM) == 0:
            return 2
        if self._name == "drops-responses" and self._random.randrange(_SELDOM) == 0:
            return 0
        return 1
