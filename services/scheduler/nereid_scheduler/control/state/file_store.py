"""Stores records in a directory: calls StateFiles in a thread, because a disk may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nereid_scheduler.control.state.blocking_thread import BlockingThread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from nereid_scheduler.control.state.files import StateFiles


Result = TypeVar("Result")


class CallQueue(Protocol):
    """Queue that runs blocking calls one after another, such as BlockingThread."""

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a call, or raise its exception."""
        ...

    def close(self) -> None:
        """Close the queue: no further calls will be made."""


class FileStore:
    """StateStore in a directory."""

    max_files_bytes: int | None = None

    def __init__(self, files: StateFiles, calls: CallQueue | None = None) -> None:
        self._files = files
        self._calls: CallQueue = BlockingThread("state files") if calls is None else calls

    async def read_all(self) -> dict[str, bytes]:
        """Return all records, by name."""
        return await self._calls.run(self._files.read_all)

    async def read(self, name: str) -> bytes:
        """Return one record; empty if there is none."""
        return await self._calls.run(self._files.read, name)

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest. Files that are missing are left out."""
        return await self._calls.run(self._files.read_files, name, digests)

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        """Replace a record and all its files, if the record has the head `expected`."""
        await self._calls.run(self._files.write, name, record, expected, files)

    async def delete(self, name: str, expected: bytes) -> None:
        """Delete a record and its files, if the record has the head `expected`."""
        await self._calls.run(self._files.delete, name, expected)

    async def set_aside(self, name: str) -> str:
        """Rename a damaged record; return its new place as a text for the log."""
        return await self._calls.run(self._files.set_aside, name)

    async def close(self) -> None:
        """Let the thread end after the pending calls, without waiting for them."""
        self._calls.close()
