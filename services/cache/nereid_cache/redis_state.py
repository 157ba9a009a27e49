"""Schedulers' records in Redis, which outlive the schedulers (docs/operators/state.md).

A mesh has one hash of records, and each record has a hash of files. A shared hash tag keeps them in
one slot of a cluster. A write is one script, which Redis runs completely or not at all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError, ResponseError

from nereid_cache.store import StateStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_log = logging.getLogger(__name__)

# Others may write to Redis: leave out names that no scheduler gives, and contents that are larger
# than a scheduler writes, which the scheduler then finds damaged.
_READ_ALL: Final = """
local found = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if #name == 32 and not string.find(name, '[^0-9a-f]') then
    local fits = redis.call('HSTRLEN', KEYS[1], name) <= tonumber(ARGV[1])
    table.insert(found, name)
    table.insert(found, fits and redis.call('HGET', KEYS[1], name) or '')
  end
end
return found
"""
_MAX_RECORD_BYTES: Final = 16 << 20
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
        found = await self._eval(_READ_ALL, [self._records(mesh)], _MAX_RECORD_BYTES)
        names, records = found[::2], found[1::2]
        return {name.decode(): record for name, record in zip(names, records, strict=True)}

    async def read(self, mesh: str, name: str) -> bytes:
        """Return one record; empty if there is none."""
        return await self._run(self._records(mesh), "hget", name) or b""

    async def read_files(self, mesh: str, name: str, digests: Collection[str]) -> dict[str, bytes]:
        """Return files of a record by digest; files that are missing are left out."""
        wanted = list(digests)
        contents = await self._run(self._files(mesh, name), "hmget", wanted) if wanted else []
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
        keys = [self._records(mesh), self._files(mesh, name)]
        written = await self._eval(_WRITE, keys, name, expected, record, *contents)
        return bool(written)

    async def set_aside(self, mesh: str, name: str) -> str:
        """Rename a damaged record; return where the record is now."""
        key, aside = self._records(mesh), name + _DAMAGED
        await self._eval(_SET_ASIDE, [key], name, aside)
        return f"Redis: {key} {aside}"

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()

    def _records(self, mesh: str) -> str:
        return f"{self._prefix}nereid-state:{{{mesh}}}"

    def _files(self, mesh: str, name: str) -> str:
        return f"{self._records(mesh)}:{name}"

    async def _eval(self, script: str, keys: list[str], *arguments: Any) -> Any:
        return await self._call(keys[0], "eval", script, len(keys), *keys, *arguments)

    async def _run(self, key: str, command: str, *arguments: Any) -> Any:
        return await self._call(key, command, key, *arguments)

    async def _call(self, key: str, command: str, *arguments: Any) -> Any:
        """Run a command; a key of another type, which no scheduler wrote, is set aside first."""
        call = getattr(self._client, command)
        try:
            try:
                return await call(*arguments)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                await self._client.rename(key, key + _DAMAGED)
                _log.error("%s in Redis is no hash; it is kept at %s%s", key, key, _DAMAGED)
                return await call(*arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise StateStoreError(f"Redis: {type(error).__name__}: {error}") from error
