"""The store in a directory: StateFiles in a thread of its own, so that a disk may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nereid_scheduler.control.state.blocking_thread import BlockingThread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from nereid_scheduler.control.state.files import StateFiles


Result = TypeVar("Result")


class CallQueue(Protocol):
    """Runs blocking calls one after another; BlockingThread is one."""

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Its result, or its exception."""
        ...

    def close(self) -> None:
        """There are no further calls."""


class FileStore:
    """Fulfils StateStore."""

    max_files_bytes: int | None = None

    def __init__(self, files: StateFiles, calls: CallQueue | None = None) -> None:
        """calls: where the files are read and written; by default a thread."""
        self._files = files
        self._calls: CallQueue = BlockingThread("state files") if calls is None else calls

    async def read_all(self) -> dict[str, bytes]:
        return await self._calls.run(self._files.read_all)

    async def read(self, name: str) -> bytes:
        return await self._calls.run(self._files.read, name)

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        return await self._calls.run(self._files.read_files, name, digests)

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        await self._calls.run(self._files.write, name, record, expected, files)

    async def delete(self, name: str, expected: bytes) -> None:
        await self._calls.run(self._files.delete, name, expected)

    async def set_aside(self, name: str) -> str:
        return await self._calls.run(self._files.set_aside, name)

    async def close(self) -> None:
        self._calls.close()
