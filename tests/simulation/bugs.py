"""Bugs that a simulation is given on purpose: it must find them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid.core.messages import InferRequest
from nereid.services.executor.batch.begun_batches import BegunBatches
from nereid.services.executor.recent_runs import RecentRuns
from nereid.services.executor.takeover.model_claims import ModelClaims
from nereid.services.executor.takeover.model_files import ModelFiles, read_model_files
from nereid.services.scheduler.state.file_store import FileStore

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable, Mapping
    from pathlib import Path

    from nereid.services.executor.takeover.model_claims import Grant, Rank
    from nereid.services.scheduler.state.file_store import CallQueue
    from nereid.services.scheduler.state.files import StateFiles

NAMES = (
    "forgets-withdrawals",
    "responds-twice",
    "drops-responses",
    "resends-unmarked",
    "acknowledges-before-writing",
    "forgets-runs",
    "shares-models",
    "keeps-claims",
    "continues-numbers",
    "overlooks-edits",
)
_WRITTEN_AFTER_S = 5.0
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


class _EarlyStore(FileStore):
    """Acknowledges what it has not written yet."""

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        work = super().write(name, record, expected, files)
        loop = asyncio.get_running_loop()
        loop.call_later(_WRITTEN_AFTER_S, lambda: loop.create_task(work))


class SimulatedRuns(RecentRuns):
    """What recalls wait for can be seen."""

    def recalled_ids(self) -> list[int]:
        """The requests that schedulers recall and that still run."""
        return list(self._waiting)


class _ForgetfulRuns(SimulatedRuns):
    """Reports nothing that has begun."""

    def begun_ids(self) -> list[int]:
        return []


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


class _AnyFiles(ModelFiles):
    """Are always those that were loaded."""

    def same_in(self, later: ModelFiles | None) -> bool:
        return True


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

    def open_store(self, files: StateFiles, calls: CallQueue) -> FileStore:
        """Of a scheduler's state."""
        early = self._name == "acknowledges-before-writing"
        return _EarlyStore(files, calls) if early else FileStore(files, calls)

    def next_begun(self, before: BegunBatches) -> BegunBatches:
        """For an instance's next tenure."""
        return before if self._name == "continues-numbers" else self.begun_batches()

    def recent_runs(self) -> SimulatedRuns:
        return _ForgetfulRuns() if self._name == "forgets-runs" else SimulatedRuns()

    def model_claims(self) -> ModelClaims:
        kinds = {"shares-models": _SharingClaims, "keeps-claims": _KeepingClaims}
        return kinds.get(self._name, ModelClaims)()

    def read_files(self, version_path: Path) -> ModelFiles | None:
        """Those that an instance is loaded from."""
        files = read_model_files(version_path)
        if files is not None and self._name == "overlooks-edits":
            return _AnyFiles(files.version, files.beside)
        return files

    def copies(self) -> int:
        """How often a reply is sent."""
        if self._name == "responds-twice" and self._random.randrange(_SELDOM) == 0:
            return 2
        if self._name == "drops-responses" and self._random.randrange(_SELDOM) == 0:
            return 0
        return 1
