"""Calls of the scheduler's control plane; each may raise NereidError."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nereid import rpc
from nereid.core.errors import Unavailable, error_from_code
from nereid.core.methods import SCHEDULER
from nereid.core.retry_after import DEFAULT_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

UNREACHABLE: Final = "the scheduler cannot be reached"
_NO_REPLY: Final = "the scheduler does not reply"
_LOST: Final = (
    "the scheduler was lost before it replied; whether it has done this is not known: repeat the"
    " call, which does no harm"
)
_RECONNECT_PAUSE_S: Final = 0.1
# Number of equal parts of a time limit. A pause of this process uses up one part at most.
_CHECKS: Final = 4


async def call_scheduler(
    channel: rpc.Channel, method: str, request: bytes, timeout_s: float | None
) -> bytes:
    """Make one call and return the response; timeout_s None means no limit."""
    with _scheduler_errors():
        return await channel.unary(SCHEDULER + method, request, timeout_s=timeout_s)


async def call_scheduler_again(  # noqa: PLR0913 (by keyword)
    channel: rpc.Channel,
    method: str,
    request: bytes,
    timeout_s: float | None,
    *,
    reconnect_s: float,
    next_channel: Callable[[], rpc.Channel] | None = None,
) -> bytes:
    """Make a call that may safely run twice, and return the response.

    If the connection breaks, the call is made once more, at the next scheduler within
    `reconnect_s`. It is not made a third time, because the call may be what makes schedulers crash.
    """
    with _scheduler_errors():
        try:
            return await channel.unary(SCHEDULER + method, request, timeout_s=timeout_s)
        except rpc.ConnectionLostError:
            loop = asyncio.get_running_loop()
            until = loop.time() + reconnect_s
        while True:
            await asyncio.sleep(min(_RECONNECT_PAUSE_S, reconnect_s))
            again = channel if next_channel is None else next_channel()
            try:
                return await again.unary(SCHEDULER + method, request, timeout_s=timeout_s)
            except rpc.ConnectionLostError as error:
                raise Unavailable(_LOST) from error
            except rpc.NotConnectedError as error:
                if loop.time() >= until:
                    raise Unavailable(_LOST) from error


async def call_any(
    channels: Iterable[rpc.Channel],
    call: Callable[[rpc.Channel], Awaitable[bytes]],
    *,
    is_read: bool = False,
) -> bytes:
    """Make a call at the first connected channel; if it fails, a read tries the next one."""
    failure = Unavailable(UNREACHABLE)
    for channel in channels:
        try:
            return await call(channel)
        except Unavailable as error:
            # Without a connection nothing was sent, so the call has not run.
            if not is_read and error.message != UNREACHABLE:
                raise
            failure = error
    raise failure


async def call_responsive_scheduler(
    channel: rpc.Channel, method: str, request: bytes, *, accept_s: float, timeout_s: float
) -> bytes:
    """Make a call that the scheduler must accept within `accept_s` and complete in `timeout_s`.

    A scheduler that waits for other services accepts the call first; one that hangs does not. A
    pause of this process counts as at most a quarter of `accept_s`.
    """
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[bytes] = loop.create_future()
    messages: list[bytes] = []

    def on_close(error: rpc.RpcError | None) -> None:
        if reply.done():
            return
        if error is None:
            reply.set_result(b"".join(messages))
        else:
            reply.set_exception(error)

    check_s = min(accept_s, timeout_s) / _CHECKS
    checks = 0
    silence: asyncio.TimerHandle

    def on_open() -> None:
        silence.cancel()

    def on_silence() -> None:
        nonlocal silence, checks
        checks += 1
        if checks == _CHECKS:
            on_close(rpc.RpcError(rpc.Status.UNAVAILABLE, _NO_REPLY))
        else:
            silence = loop.call_later(check_s, on_silence)

    silence = loop.call_later(check_s, on_silence)
    stream = channel.stream(
        SCHEDULER + method, on_message=messages.append, on_close=on_close, on_open=on_open
    )
    stream.send(request)
    stream.half_close()
    try:
        with _scheduler_errors():
            async with asyncio.timeout(timeout_s):
                return await reply
    except TimeoutError:
        raise Unavailable(_NO_REPLY) from None
    finally:
        silence.cancel()
        stream.cancel()


@contextmanager
def _scheduler_errors() -> Iterator[None]:
    try:
        yield
    except rpc.NotConnectedError as error:
        # Do not show the scheduler's address to clients. The log has it.
        raise unreachable() from error
    except rpc.RpcError as error:
        raise error_from_code(int(error.status), error.message) from error


def unreachable() -> Unavailable:
    """Return the error for requests and calls while no scheduler is connected."""
    return Unavailable(UNREACHABLE, retry_after_ms=DEFAULT_MS)
