"""Schedulers' records in Redis, which outlive the schedulers (docs/operators/state.md).

A mesh has one hash of records, and each record has a hash of files. A shared hash tag keeps them in
one slot of a cluster. A write is one script, which Redis runs completely or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from nereid_cache.store import StateStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# A full Redis refuses a script only before its first write, so write the record first.
_WRITE: Final = """
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local head = string.sub(known, 1, string.find(known, '\\n', 1, true) or 0)
if head ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('DEL', KEYS[2])
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
"""
_SET_ASIDE: Final = """
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], known)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
"""
_DAMAGED: Final = ".damaged"


class RedisState:
    """Schedulers' records, over a client that this object owns; may raise StateStoreError."""

    def __init__(self, client: Any, namespace: str = "") -> None:
        self._client = client
        self._prefix = f"{namespace}:" if namespace else ""

    async def read_all(self, mesh: str) -> dict[str, bytes]:
        """Return all records of a mesh, by their names."""
        records = await self._run("hgetall", self._records(mesh))
        return {name.decode(): record for name, record in records.items() if b"." not in name}

    async def read(self, mesh: str, name: str) -> bytes:
        """Return one record; empty if there is none."""
        return await self._run("hget", self._records(mesh), name) or b""

    async def read_files(self, mesh: str, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest; files that are missing are left out."""
        wanted = list(digests)
        contents = await self._run("hmget", self._files(mesh, name), wanted) if wanted else []
        return {
            digest: content
            for digest, content in zip(wanted, contents, strict=True)
            if content is not None
        }

    async def write(
        self, mesh: str, name: str, record: bytes, expected: bytes, files: Mapping[str, bytes]
    ) -> bool:
        """Replace a record and its files, and return True, if the first line is as expected.

        An empty record is deleted.
        """
        contents = [part for item in files.items() for part in item]
        keys = (self._records(mesh), self._files(mesh, name))
        written = await self._run("eval", _WRITE, 2, *keys, name, expected, record, *contents)
        return bool(written)

    async def set_aside(self, mesh: str, name: str) -> str:
        """Rename a damaged record; return where the record is now."""
        key, aside = self._records(mesh), name + _DAMAGED
        await self._run("eval", _SET_ASIDE, 1, key, name, aside)
        return f"Redis: {key} {aside}"

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()

    def _records(self, mesh: str) -> str:
        return f"{self._prefix}nereid-state:{{{mesh}}}"

    def _files(self, mesh: str, name: str) -> str:
        return f"{self._records(mesh)}:{name}"

    async def _run(self, command: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._client, command)(*arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise StateStoreError(f"Redis: {type(error).__name__}: {error}") from error
