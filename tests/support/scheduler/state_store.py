"""A store of state in memory, which fails and hangs as the test says."""

import asyncio
from collections.abc import Collection, Mapping

from nereid_scheduler.control.state.format.records import (
    Record,
    decode_record,
    encode_record,
    head_of,
    record_name,
)
from nereid_scheduler.control.state.store import StateConflict


class MemoryStateStore:
    """Fulfils StateStore. error: raised by each call; files_error: by reads of files; open: calls
    hang while it is not set.
    """

    max_files_bytes: int | None = None

    def __init__(self, **documents: Mapping[str, object]) -> None:
        self.records = {
            record_name(key): encode_record(Record(key, each)) for key, each in documents.items()
        }
        self.files: dict[str, dict[str, bytes]] = {}
        self.aside: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.files_error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        # All that was tried.
        self.writes: list[str] = []
        self.closed = False

    async def read_all(self) -> dict[str, bytes]:
        await self._pass()
        return dict(self.records)

    async def read(self, name: str) -> bytes:
        await self._pass()
        return self.records.get(name, b"")

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        await self._pass()
        if self.files_error is not None:
            raise self.files_error
        return {each: self.files[name][each] for each in digests}

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        self.writes.append(decode_record(name, record).key)
        await self._pass(name, expected)
        self.records[name], self.files[name] = record, dict(files)

    async def delete(self, name: str, expected: bytes) -> None:
        self.writes.append("deletion")
        await self._pass(name, expected)
        self.records.pop(name, None)
        self.files.pop(name, None)

    async def set_aside(self, name: str) -> str:
        await self._pass()
        self.aside[name] = self.records.pop(name)
        return "aside"

    async def close(self) -> None:
        self.closed = True

    async def _pass(self, name: str = "", expected: bytes = b"") -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if name and head_of(self.records.get(name, b"")) != expected:
            raise StateConflict("another has written it")

    def document(self, key: str) -> object:
        data = self.records.get(record_name(key))
        return None if data is None else decode_record(record_name(key), data).document
