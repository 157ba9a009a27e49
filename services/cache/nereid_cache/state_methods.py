"""RPCs with which schedulers keep their state in the cache's Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.methods import READ_STATE_PATH, WRITE_STATE_PATH
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from nereid_cache.store import StateStoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid.rpc import AsyncUnaryHandler, Call
    from nereid_cache.redis_state import RedisState

_NO_REDIS: Final = "this cache is not in Redis (--cache-config): it keeps no state"


def state_handlers(state: RedisState | None) -> dict[str, AsyncUnaryHandler]:
    """Return the handlers by path; without Redis (None) they refuse all calls."""

    async def read(redis: RedisState, message: bytes) -> bytes:
        request = pb.ReadStateRequest.FromString(message)
        response = pb.ReadStateResponse()
        if not request.record:
            response.records.update(await redis.read_all(request.mesh))
        elif request.files:
            contents = await redis.read_files(request.mesh, request.record, request.files)
            response.files.update(contents)
        else:
            response.records[request.record] = await redis.read(request.mesh, request.record)
        return response.SerializeToString()

    async def write(redis: RedisState, message: bytes) -> bytes:
        request = pb.WriteStateRequest.FromString(message)
        response = pb.WriteStateResponse()
        if request.damaged:
            response.aside = await redis.set_aside(request.mesh, request.record)
        else:
            written = await redis.write(
                request.mesh, request.record, request.content, request.expected, request.files
            )
            response.conflict = not written
        return response.SerializeToString()

    return {
        READ_STATE_PATH: _handler(state, read),
        WRITE_STATE_PATH: _handler(state, write),
    }


def _handler(
    state: RedisState | None, respond: Callable[[RedisState, bytes], Awaitable[bytes]]
) -> AsyncUnaryHandler:
    async def handle(_call: Call, message: bytes) -> bytes:
        if state is None:
            raise RpcError(Status.UNIMPLEMENTED, _NO_REDIS)
        try:
            return await respond(state, message)
        except DecodeError as error:
            raise RpcError(Status.INTERNAL, "the request cannot be read") from error
        except StateStoreError as error:
            raise RpcError(Status.UNAVAILABLE, str(error)) from error

    return handle
