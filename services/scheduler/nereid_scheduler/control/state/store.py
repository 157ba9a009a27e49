"""Interface of the stores that keep records. A store knows names and bytes, not what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class StateError(Exception):
    """The store cannot be read or written. The text gives the reason."""


class StateConflict(StateError):
    """Another scheduler has written this record since it was read."""


class StateStore(Protocol):
    """A store of records. Each call may raise StateError.

    A write is all or nothing, and requires that the stored record has the head `expected` (see
    `head_of`). An empty head means no record.
    """

    # `None` means no limit.
    max_files_bytes: int | None

    async def read_all(self) -> dict[str, bytes]:
        """Return all records, by name."""
        ...

    async def read(self, name: str) -> bytes:
        """Return one record; empty if there is none."""
        ...

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest. Files that are missing are left out."""
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
        """Rename a damaged record, replacing an earlier one; return its new place for the log."""
        ...

    async def close(self) -> None:
        """Release what is open. Pending calls may never return."""
        ...
