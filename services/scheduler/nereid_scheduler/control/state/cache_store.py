"""Stores records in Redis through the cache service, which has the connection and the password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.methods import READ_STATE_PATH, WRITE_STATE_PATH
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError
from nereid_scheduler.control.state.store import StateConflict, StateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nereid.rpc import Channel

# Maximum bytes of the files of one record. Redis serves no other client while it copies them.
_MAX_FILES_BYTES: Final = 32 << 20


class CacheStore:
    """StateStore in Redis. The creator of the channel closes it."""

    max_files_bytes: int | None = _MAX_FILES_BYTES

    def __init__(self, channel: Channel, mesh: str, limit_s: float = DEFAULT_TIMES.state_s) -> None:
        self._channel = channel
        self._mesh = mesh
        self._limit_s = limit_s

    async def read_all(self) -> dict[str, bytes]:
        """Return all records, by name."""
        return dict((await self._read()).records)

    async def read(self, name: str) -> bytes:
        """Return one record; empty if there is none."""
        return (await self._read(record=name)).records[name]

    async def read_files(self, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest. Files that are missing are left out."""
        return dict((await self._read(record=name, files=digests)).files)

    async def write(
        self, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> None:
        """Replace a record and all its files, if the record has the head `expected`."""
        await self._write(record=name, content=record, expected=expected, files=files)

    async def delete(self, name: str, expected: bytes) -> None:
        """Delete a record and its files, if the record has the head `expected`."""
        await self._write(record=name, expected=expected)

    async def set_aside(self, name: str) -> str:
        """Rename a damaged record; return its new place as a text for the log."""
        return (await self._write(record=name, damaged=True)).aside

    async def close(self) -> None:
        """Do nothing: the channel stays open for its owner."""

    async def _read(self, **fields: Any) -> pb.ReadStateResponse:
        request = pb.ReadStateRequest(mesh=self._mesh, **fields)
        reply = await self._call(READ_STATE_PATH, request.SerializeToString())
        return pb.ReadStateResponse.FromString(reply)

    async def _write(self, **fields: Any) -> pb.WriteStateResponse:
        request = pb.WriteStateRequest(mesh=self._mesh, **fields)
        reply = await self._call(WRITE_STATE_PATH, request.SerializeToString())
        response = pb.WriteStateResponse.FromString(reply)
        if response.conflict:
            raise StateConflict("another scheduler has written it meanwhile")
        return response

    async def _call(self, path: str, message: bytes) -> bytes:
        try:
            return await self._channel.unary(path, message, timeout_s=self._limit_s)
        except RpcError as error:
            raise StateError(f"the cache does not keep the state: {error.message}") from error
