"""What keeps records. A store knows names and bytes, not what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class StateError(Exception):
    """The store cannot be read or written; the text says why."""


class StateConflict(StateError):
    """Somebody else has written this record since it was read."""


class StateStore(Protocol):
    """Each call raises StateError. A write is done wholly or not at all, also if the process or
    the machine ends meanwhile, and only if the record still has the head `expected` (see head_of;
    empty: there must be none).
    """

    # Of the files of one record; None: no limit.
    max_files_bytes: int | None

    async def read_all(self) -> dict[str, bytes]:
        """All records by their names."""
        ...

    async def read(self, name: str) -> bytes:
        """One record; empty: there is none."""
        ...

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Files of a record, by their digests; those that are missing are left out."""
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
        """Rename a damaged record, over an earlier one; where it is now, for the log."""
        ...

    async def close(self) -> None:
        """Let go of what it has open; pending calls may never return."""
        ...
