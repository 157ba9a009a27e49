"""Reader of control calls' bodies, which are small unless a client sends a large one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nereid_gateway.plane.decoding.limits import LARGE_BYTES, SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

    Value = TypeVar("Value")


async def read_body(
    data_plane: DataPlane, call: HttpCall, read: Callable[..., Value], *arguments: Any
) -> Value:
    """Return read(body, *arguments) for the body of a call, and drop the body.

    A decoder process reads a large body, so read must be a module-level function with a small
    result.
    """
    body, call.body = call.body, b""
    if len(body) <= LARGE_BYTES:
        if len(body) > SMALL_BYTES:
            await data_plane.decoding.turns.wait(call.peer, len(body))
        return read(body, *arguments)
    value: Value
    value, _ = await data_plane.decoders.run(call.peer, _read_job, read, arguments, blobs=[body])
    return value


def _read_job(
    bodies: Sequence[bytes], read: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, tuple[()]]:
    return read(bodies[0], *arguments), ()
