"""Reader of control calls' bodies, which are small unless a client sends a large one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

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
    value: Value
    value, _ = await data_plane.decoding.run_text_job(call.peer, body, _read_job, read, arguments)
    return value


def _read_job(
    bodies: Sequence[bytes], read: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, tuple[()]]:
    return read(bodies[0], *arguments), ()
