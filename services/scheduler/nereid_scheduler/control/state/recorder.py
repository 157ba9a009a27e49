"""Writes changes of the state to the store in the background, one record after another.

    state of a change   event                                         next state
    (new)               `put` or `delete`; an earlier change of the   pending
                        same record is dropped
    pending             it is written                                 done
    pending             another scheduler has written the record      dropped, unless it is to be
                                                                      written over others' records
    pending             the store fails                               pending: tried again after
                                                                      `retry_s` and by `close`, with
                                                                      its fallback document if it
                                                                      has one

A new change is tried at once, also while others wait to be tried again.

If the store hangs, only the recorder's own task hangs: a caller waits a limited time for its record
to be written, and does not wait while an earlier write still hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nereid_scheduler.control.state.format.records import (
    MAX_RECORD_BYTES,
    DamagedRecord,
    NewerRecord,
    Record,
    decode_record,
    encode_record,
    head_of,
    record_name,
)
from nereid_scheduler.control.state.store import StateConflict, StateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nereid_scheduler.control.state.store import StateStore

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


@dataclass(slots=True, eq=False)
class _Change:
    """A record to write, or to delete if `document` is `None`."""

    key: str
    document: Mapping[str, Any] | None
    files: Mapping[str, bytes]
    # Written if `document` cannot be. It names no files: files must not wait in memory.
    fallback: Mapping[str, Any] | None
    over_others: bool
    # Set when the change has been written, or an attempt to write it has failed.
    tried: asyncio.Event = field(default_factory=asyncio.Event)


class StateRecorder:
    """Reads and writes one scheduler's records. Writes begin once `read` has succeeded."""

    def __init__(
        self,
        store: StateStore,
        secret: bytes = b"",
        *,
        wait_s: float = 2.0,
        retry_s: float = 5.0,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._store = store
        self._secret = secret
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._max_record_bytes = max_record_bytes
        # Key: a record's name. The next write expects this head; `None`: read the record first.
        self._heads: dict[str, bytes | None] = {}
        self._pending: dict[str, _Change] = {}
        self._changed = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._disabled = False
        # True if a caller has waited in vain. Then no caller waits before a write returns.
        self._stalled = False
        self._failing = False
        self.failures = 0

    @property
    def max_files_bytes(self) -> int | None:
        """Maximum bytes of the files of one record; `None` means no limit."""
        return self._store.max_files_bytes

    async def read(self) -> dict[str, Mapping[str, Any]]:
        """Return all documents, by key, or raise StateError. Damaged records are set aside.

        If a newer scheduler has written a record, nothing is returned and nothing will be written.
        """
        before = dict(self._heads)
        try:
            stored = await self._store.read_all()
        except StateError:
            self.failures += 1
            raise
        documents = {}
        # Records that were written during the read may be newer than what was read.
        known = {name for name, head in self._heads.items() if before.get(name, b"") is not head}
        for name in self._heads.keys() - stored.keys() - known:
            del self._heads[name]
        for name, data in stored.items():
            try:
                record = decode_record(name, data, self._secret)
            except DamagedRecord as error:
                await self._set_aside(name, error)
            except NewerRecord as error:
                _log.error(
                    "a newer scheduler has written the state (%s); this scheduler starts without it"
                    " and records nothing: upgrade it, or give it its own --state-directory",
                    error,
                )
                self._disable()
                return {}
            else:
                documents[record.key] = record.document
                if name not in known:
                    self._heads[name] = head_of(data)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_forever())
        return documents

    async def read_files(self, key: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest. They are not checked. May raise StateError."""
        try:
            return await self._store.read_files(record_name(key), digests)
        except StateError:
            self.failures += 1
            raise

    def mark_unread(self, key: str) -> None:
        """Read a record before its next write, since another scheduler may have written it."""
        self._heads[record_name(key)] = None

    def is_pending(self, key: str) -> bool:
        """Return whether a change of this record is not yet written."""
        return key in self._pending

    def put(
        self,
        key: str,
        document: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
        fallback: Mapping[str, Any] | None = None,
        *,
        over_others: bool = False,
    ) -> None:
        """Queue a record for writing.

        fallback: document to write if the files cannot be written. over_others: overwrite what
        another scheduler has written since the last read.
        """
        self._add(_Change(key, document, files or {}, fallback, over_others))

    def delete(self, key: str) -> None:
        """Queue a record and its files for deletion."""
        unread = self._writer is None
        if unread or key in self._pending or self._heads.get(record_name(key), b"") != b"":
            self._add(_Change(key, None, {}, None, over_others=False))

    async def written(self, key: str) -> None:
        """Wait a limited time until the last change of a record was written or has failed."""
        change = self._pending.get(key)
        if change is None or self._stalled:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await change.tried.wait()
        except TimeoutError:
            self._stalled = True
            self._on_failure(f"no response for {self._wait_s:g} s")

    async def close(self) -> None:
        """Try once more to write pending changes, then close the store."""
        for change in self._pending.values():
            change.tried.clear()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._stalled else self._wait_s):
                for change in list(self._pending.values()):
                    await change.tried.wait()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._store.close()

    def _add(self, change: _Change) -> None:
        if self._disabled:
            return
        earlier = self._pending.pop(change.key, None)
        if earlier is not None:
            # The earlier change will not be written: end the waits for it.
            earlier.tried.set()
        self._pending[change.key] = change
        self._changed.set()

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        retry_at_s: float | None = None
        while True:
            self._changed.clear()
            retry = retry_at_s is not None and loop.time() >= retry_at_s
            if retry:
                retry_at_s = None
            for change in list(self._pending.values()):
                if self._pending.get(change.key) is not change:
                    continue
                untried = not change.tried.is_set()
                if (untried or retry) and not await self._try_change(change):
                    retry_at_s = retry_at_s or loop.time() + self._retry_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(retry_at_s):
                    await self._changed.wait()

    async def _try_change(self, change: _Change) -> bool:
        """Write a change; return False if that failed and the change is still pending."""
        try:
            await self._write(change)
        except StateConflict as error:
            self.failures += 1
            _log.warning("the state of %s is not recorded: %s", change.key, error)
            self._forget(change)
        except Exception as error:
            self._on_failure(str(error), bug=not isinstance(error, StateError))
            await self._fall_back(change)
            return False
        else:
            if self._failing:
                _log.info("the state is recorded again")
            self._failing = False
            self._forget(change)
        finally:
            self._stalled = False
            change.tried.set()
        return True

    async def _write(self, change: _Change) -> None:
        name = record_name(change.key)
        for attempt in range(1, _ATTEMPTS + 1):
            expected = self._heads.get(name, b"")
            # After a failed write the store's content is unknown: read it before the next write.
            self._heads[name] = None
            if expected is None:
                expected = head_of(await self._store.read(name))
            try:
                self._heads[name] = await self._write_once(name, change, expected)
            except StateConflict:
                if not change.over_others or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _write_once(self, name: str, change: _Change, expected: bytes) -> bytes:
        if change.document is None:
            await self._store.delete(name, expected)
            return b""
        data = encode_record(Record(change.key, change.document), self._secret)
        if len(data) > self._max_record_bytes:
            raise StateError(f"the record of {change.key} has {len(data)} bytes")
        await self._store.write(name, data, expected, change.files)
        return head_of(data)

    async def _fall_back(self, change: _Change) -> None:
        """Delete the store's record, which is now wrong. That works even on a full disk."""
        if change.fallback is not None:
            change.document, change.files, change.fallback = change.fallback, {}, None
        if not change.over_others:
            with contextlib.suppress(Exception):
                name = record_name(change.key)
                await self._store.delete(name, head_of(await self._store.read(name)))

    def _disable(self) -> None:
        self._disabled = True
        for change in self._pending.values():
            change.tried.set()
        self._pending.clear()

    def _forget(self, change: _Change) -> None:
        if self._pending.get(change.key) is change:
            del self._pending[change.key]

    def _on_failure(self, cause: str, *, bug: bool = False) -> None:
        self.failures += 1
        if not self._failing:
            self._failing = True
            _log.warning(
                "the state is not recorded: %s; a scheduler that starts now does not know the last"
                " changes (--state-directory)",
                cause,
                exc_info=bug,
            )

    async def _set_aside(self, name: str, error: DamagedRecord) -> None:
        self.failures += 1
        try:
            place = await self._store.set_aside(name)
        except StateError as refused:
            place = f"where it was ({refused})"
            self._heads[name] = None
        _log.error("a record of the state is ignored: %s; it is kept at %s", error, place)
