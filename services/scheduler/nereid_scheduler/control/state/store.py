"""Interface of the stores that keep records. A store knows names and bytes, not what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class StateError(Exception):
    """The store cannot be read or written; the text gives the reason."""


class StateConflict(StateError):
    """Another scheduler has written this record since it was read."""


class StateStore(Protocol):
    """Store of records. Each call may raise StateError.

    A write is done wholly or not at all, even if the process or the machine ends meanwhile, and
    only if the record still has the head `expected` (see `head_of`; empty: there must be no
    record).
    """

    # Limit for the files of one record; `None` means no limit.
    max_files_bytes: int | None

    async def read_all(self) -> dict[str, bytes]:
        """Return all records by their names."""
        ...

    async def read(self, name: str) -> bytes:
        """Return one record, empty if there is none."""
        ...

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by their digests, without those that are missing."""
        ...

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        """Replace a record and all its files."""
        ...

    async def delete(self, name: str, expected: bytes) -> None:
        """Delete a record and its files."""
        ...

    async def set_aside(self, name: str) -> str:
        """Rename a damaged record, over an earlier one; return its new place, for the log."""
        ...

    async def close(self) -> None:
        """Release what is open; pending calls may never return."""
        ...
