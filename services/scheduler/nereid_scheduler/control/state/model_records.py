"""Records of what clients have loaded and unloaded: one record for each model."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from nereid.core.errors import Internal
from nereid_scheduler.control.state.format.records import DamagedRecord, file_digest
from nereid_scheduler.control.state.store import StateError
from nereid_scheduler.core.models.model_record import MODEL_PREFIX, ModelRecord, model_key
from nereid_scheduler.core.models.overrides import Override

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nereid_scheduler.control.state.recorder import StateRecorder

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def parse_model_record(key: str, document: Mapping[str, Any]) -> ModelRecord | None:
    """Return a model's record, or `None` for another one. May raise DamagedRecord."""
    if not key.startswith(MODEL_PREFIX):
        return None
    versions = document.get("versions")
    if versions is not None and not (
        type(versions) is list and all(type(version) is int for version in versions)
    ):
        raise DamagedRecord("a value is of another type")
    record = ModelRecord(
        key.removeprefix(MODEL_PREFIX),
        document.get("loaded", None),
        document.get("by_name", True),
        document.get("config"),
        document.get("files", {}),
        document.get("lost", ""),
        document.get("directory", ""),
        None if versions is None else tuple(versions),
    )
    valid = (
        type(record.loaded) is bool
        and type(record.by_name) is bool
        and (record.config is None or type(record.config) is str)
        and type(record.files) is dict
        and all(type(digest) is str for digest in record.files.values())
        and type(record.lost) is str
        and type(record.directory) is str
    )
    if not valid:
        raise DamagedRecord("a value is of another type")
    return record


class ModelRecords:
    """Reads and writes the records of models. Use it in one event loop."""

    are_kept: ClassVar = True

    def __init__(self, recorder: StateRecorder, *, retry_s: float = 1.0) -> None:
        self._recorder = recorder
        self._retry_s = retry_s
        # The record as it will be once all pending changes are written.
        self._known: dict[str, ModelRecord] = {}

    def parse(self, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelRecord]:
        """Return the models' records among documents, except records that changed meanwhile."""
        records = {}
        for key, document in documents.items():
            try:
                record = parse_model_record(key, document)
            except DamagedRecord as error:
                _log.error("the record of %s in the state is ignored: %s", key, error)
                continue
            if record is not None and not self._recorder.is_pending(key):
                records[record.name] = record
        pending = {
            name: known
            for name, known in self._known.items()
            if self._recorder.is_pending(known.key)
        }
        self._known = pending | records
        return records

    async def read_again(self) -> dict[str, ModelRecord]:
        """Wait until the store can be read; return all records. Other schedulers write them too."""
        waiting = "models that are taken over wait for the state"
        return self.parse(await self._read_patiently(self._recorder.read, waiting))

    def mark_unread(self, name: str) -> None:
        """Let the next write replace what another scheduler, the model's last owner, has written.

        Loads and unloads by clients do not wait for `read_again`.
        """
        self._recorder.mark_unread(model_key(name))

    def last_files(self, name: str) -> bool:
        """Return whether the model's last load request brought files."""
        known = self._known.get(name)
        return known is not None and bool(known.files or known.lost)

    async def read_override(self, record: ModelRecord) -> Override | None:
        """Return the override of a model's last load, or `None` if it had none.

        Waits until the store can be read. Raises Internal if files are missing or damaged.
        """
        if record.lost:
            raise record.loss()
        if not record.files:
            return None if record.config is None else Override(record.config)
        digests = set(record.files.values())
        content = await self._read_patiently(
            lambda: self._recorder.read_files(record.key, digests),
            f"model '{record.name}' waits for the files that it was loaded with",
        )
        for path, digest in record.files.items():
            if file_digest(content.get(digest, b"")) != digest:
                raise Internal(f"the file '{path}' that it was loaded with is damaged or missing")
        files = {path: content[digest] for path, digest in record.files.items()}
        return Override(record.config or "", files, record.directory)

    async def record_load(
        self,
        name: str,
        override: Override | None,
        *,
        by_name: bool,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        """Record a load. Wait a limited time until the record is written; writing may fail.

        versions: those in service, unless the version policy says.
        """
        if override is not None and override.files:
            self._put_with_files(name, override)
        else:
            config = None if override is None else override.config
            record = ModelRecord(name, loaded=True, by_name=by_name, config=config)
            self._put(replace(record, versions=versions))
        await self._recorder.written(model_key(name))

    async def record_request(self, name: str) -> None:
        """Record that a client has asked by name for a model that is in service unchanged."""
        known = self._known.get(name)
        if known is None or not (known.loaded and known.by_name):
            await self.record_load(name, None, by_name=True)

    async def record_unload(self, name: str, *, kept: bool) -> None:
        """Record an unload. `kept`: keep the record, or else the next start loads the model."""
        key = model_key(name)
        if kept:
            self._put(ModelRecord(name, loaded=False))
        else:
            self._known.pop(name, None)
            self._recorder.delete(key)
        await self._recorder.written(key)

    async def _read_patiently(self, read: Callable[[], Awaitable[_T]], waiting: str) -> _T:
        logged = False
        while True:
            try:
                return await read()
            except StateError as error:
                if not logged:
                    _log.error("%s: %s; trying again", waiting, error)
                    logged = True
                await asyncio.sleep(self._retry_s)

    def _put(self, record: ModelRecord) -> None:
        self._known[record.name] = record
        self._recorder.put(record.key, record.document())

    def _put_with_files(self, name: str, override: Override) -> None:
        size = sum(map(len, override.files.values()))
        limit = self._recorder.max_files_bytes
        if limit is not None and size > limit:
            lost = f"they have {size} bytes, more than the {limit} that are kept"
            _log.warning(
                "model '%s' is recorded without the files of its load request (%s): after a"
                " restart it has to be loaded again by its client",
                *(name, lost),
            )
            self._put(ModelRecord(name, loaded=True, config=override.config, lost=lost))
            return
        digests = {path: file_digest(content) for path, content in override.files.items()}
        record = ModelRecord(
            name,
            loaded=True,
            config=override.config,
            files=digests,
            directory=override.directory,
        )
        unwritten = ModelRecord(
            name, loaded=True, config=override.config, lost="they could not be written"
        )
        self._known[name] = record
        self._recorder.put(
            record.key,
            record.document(),
            {digests[path]: content for path, content in override.files.items()},
            unwritten.document(),
        )


class NoModelRecords(ModelRecords):
    """The records of a scheduler that keeps no records."""

    are_kept: ClassVar = False

    def __init__(self) -> None:
        pass

    async def read_again(self) -> dict[str, ModelRecord]:
        """Return no records."""
        return {}

    def mark_unread(self, name: str) -> None:
        """Do nothing."""

    def last_files(self, name: str) -> bool:  # noqa: ARG002 - of ModelRecords
        """Return False."""
        return False

    async def record_load(
        self,
        name: str,
        override: Override | None,
        *,
        by_name: bool,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        """Record nothing."""

    async def record_request(self, name: str) -> None:
        """Record nothing."""

    async def record_unload(self, name: str, *, kept: bool) -> None:
        """Record nothing."""


NO_MODEL_RECORDS: Final = NoModelRecords()
