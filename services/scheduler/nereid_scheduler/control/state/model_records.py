"""What clients have loaded and unloaded, as records: one for each model, so that whoever owns a
model reads and writes its record alone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nereid.core.errors import Internal
from nereid_scheduler.control.state.format.records import DamagedRecord, file_digest
from nereid_scheduler.control.state.store import StateError
from nereid_scheduler.core.models.overrides import Override

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nereid_scheduler.control.state.recorder import StateRecorder

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_PREFIX: Final = "model/"


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """How a model was last loaded or unloaded.

    name: with --model-namespacing its qualified name. by_name: not only as a step of an ensemble.
    config: the override's, if there was one. files: the override's digests, by their paths.
    lost: why the override's files were not kept; it cannot be loaded again then. directory: where
    the scheduler had written them for executors.
    """

    name: str
    loaded: bool
    by_name: bool = True
    config: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""
    directory: str = ""

    @property
    def key(self) -> str:
        return model_key(self.name)

    def document(self) -> dict[str, Any]:
        return {
            "loaded": self.loaded,
            "by_name": self.by_name,
            "config": self.config,
            "files": dict(self.files),
            "lost": self.lost,
            "directory": self.directory,
        }

    def loss(self) -> Internal:
        """The error of a model whose files are lost."""
        return Internal(f"it was loaded with files that were not kept: {self.lost}")


def model_key(name: str) -> str:
    """The key of a model's record."""
    return _PREFIX + name


def parse_model_record(key: str, document: Mapping[str, Any]) -> ModelRecord | None:
    """None: it is about something else. Raises DamagedRecord: it makes no sense."""
    if not key.startswith(_PREFIX):
        return None
    record = ModelRecord(
        key.removeprefix(_PREFIX),
        document.get("loaded", None),
        document.get("by_name", True),
        document.get("config"),
        document.get("files", {}),
        document.get("lost", ""),
        document.get("directory", ""),
    )
    valid = (
        type(record.loaded) is bool
        and type(record.by_name) is bool
        and (record.config is None or type(record.config) is str)
        and type(record.files) is dict
        and all(type(each) is str for each in record.files.values())
        and type(record.lost) is str
        and type(record.directory) is str
    )
    if not valid:
        raise DamagedRecord("a value is of another type")
    return record


class ModelRecords:
    """Reads and writes them; used in one event loop."""

    def __init__(self, recorder: StateRecorder, *, retry_s: float = 1.0) -> None:
        """retry_s: the pause after the store could not be read."""
        self._recorder = recorder
        self._retry_s = retry_s
        # As they will be once all is written.
        self._known: dict[str, ModelRecord] = {}

    def parse(self, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelRecord]:
        """The models' records of what the recorder has read, by the models' names; without those
        that have changed since.
        """
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
            name: each for name, each in self._known.items() if self._recorder.is_pending(each.key)
        }
        self._known = pending | records
        return records

    async def read_again(self) -> dict[str, ModelRecord]:
        """All records as they are now: other schedulers write them too. Waits for as long as the
        store cannot be read.
        """
        waiting = "models that are taken over wait for the state"
        return self.parse(await self._read_patiently(self._recorder.read, waiting))

    def last_files(self, name: str) -> bool:
        """Whether a model was last loaded with files of its own."""
        known = self._known.get(name)
        return known is not None and bool(known.files or known.lost)

    async def read_override(self, record: ModelRecord) -> Override | None:
        """What its last load brought; None: nothing. Waits for as long as the store cannot be read.

        Raises:
            Internal: its files are not all there.
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

    async def record_load(self, name: str, override: Override | None, *, by_name: bool) -> None:
        """A model has been loaded. Waits for the record, for a limited time; it may fail."""
        if override is not None and override.files:
            self._put_with_files(name, override)
        else:
            config = None if override is None else override.config
            self._put(ModelRecord(name, loaded=True, by_name=by_name, config=config))
        await self._recorder.written(model_key(name))

    async def record_request(self, name: str) -> None:
        """A model that is in service has been loaded by its name, as it is."""
        known = self._known.get(name)
        if known is None or not (known.loaded and known.by_name):
            await self.record_load(name, None, by_name=True)

    async def record_unload(self, name: str, *, kept: bool) -> None:
        """A model has been unloaded. kept: what is loaded at a start would bring it back."""
        key = model_key(name)
        if kept:
            self._put(ModelRecord(name, loaded=False))
        else:
            self._known.pop(name, None)
            self._recorder.delete(key)
        await self._recorder.written(key)

    async def _read_patiently(self, read: Callable[[], Awaitable[_T]], waiting: str) -> _T:
        """waiting: for what, for the log."""
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
