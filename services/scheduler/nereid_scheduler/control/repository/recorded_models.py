"""Finds models that clients had loaded, so that they can be loaded again as their records say.

The files that load requests brought are read only for models that this scheduler owns.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, NereidError
from nereid_scheduler.control.state.model_records import NO_MODEL_RECORDS
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.overrides import Override

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.control.state.model_records import ModelRecords
    from nereid_scheduler.core.models.model_record import ModelRecord

_NO_FILES: Final = (
    "model files in load requests ('file:' parameters) are not allowed on this server"
    " (--allow-model-files)"
)


def require_allowed_files(override: Override | None, *, allowed: bool) -> None:
    """Raise InvalidArgument if the override has files but load requests must not bring any."""
    if override is not None and override.files and not allowed:
        raise InvalidArgument(_NO_FILES)


class RecordedModels:
    """Finds recorded models in the repositories and in the state. Use it in one event loop."""

    def __init__(
        self, repositories: Repositories, records: ModelRecords, *, files_allowed: bool
    ) -> None:
        self._repositories = repositories
        self.records: ModelRecords = records
        self._files_allowed = files_allowed

    async def find_outlines(self, records: Iterable[ModelRecord]) -> dict[str, FoundModel]:
        """Return the models by name. If a load request brought its files, return an outline."""
        chosen = list(records)
        outlines = await asyncio.to_thread(lambda: [*map(self._find_outline, chosen)])
        return {outline.name: outline for outline in outlines}

    async def find(self, record: ModelRecord) -> FoundModel:
        """Wait until the files of a model's last load request can be read; return the model."""
        try:
            override = await self.records.read_override(record)
            require_allowed_files(override, allowed=self._files_allowed)
        except NereidError as error:
            return FoundModel(record.name, error=error)
        return await asyncio.to_thread(
            self._repositories.require, record.name, override, record.versions
        )

    def _find_outline(self, record: ModelRecord) -> FoundModel:
        if record.files and not record.lost:
            try:
                return self._repositories.outline(record.name, record.config or "")
            except InvalidArgument as error:
                return FoundModel(record.name, error=error)
        if record.lost:
            return FoundModel(record.name, error=record.loss())
        override = None if record.config is None else Override(record.config)
        return self._repositories.require(record.name, override, record.versions)


class NoRecordedModels(RecordedModels):
    """The recorded models of a scheduler that keeps no records."""

    def __init__(self) -> None:
        self.records = NO_MODEL_RECORDS

    async def find_outlines(self, records: Iterable[ModelRecord]) -> dict[str, FoundModel]:  # noqa: ARG002 - of RecordedModels
        """Return no models."""
        return {}


NO_RECORDED_MODELS: Final = NoRecordedModels()
