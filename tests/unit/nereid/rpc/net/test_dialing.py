"""Look-ups of names on the way to a connection; tests/integration/rpc/test_dialing.py connects."""

from __future__ import annotations

import asyncio

import pytest

from nereid.rpc.net.dialing import Dialer, look_up


class Resolver:
    """Never replies, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.is_cancelled = False
        self._error = error

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        if self._error:
            raise self._error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        raise AssertionError


async def test_a_slow_look_up_is_not_begun_anew_and_ends_with_its_dialer() -> None:
    resolver = Resolver()
    dialer = Dialer("name:1", 0.01, resolver.look_up)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await dialer.connect(asyncio.Protocol, None)
    cancelled = asyncio.ensure_future(dialer.connect(asyncio.Protocol, None))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert resolver.asked == ["name"]
    assert not resolver.is_cancelled
    await dialer.close()
    assert resolver.is_cancelled


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
async def test_a_failure_is_an_os_error_and_the_next_attempt_asks_again(error: Exception) -> None:
    resolver = Resolver(error)
    dialer = Dialer("name:1", 10, resolver.look_up)
    for _ in range(2):
        with pytest.raises(OSError, match=str(error)):
            await dialer.connect(asyncio.Protocol, None)
    assert resolver.asked == ["name", "name"]
    await dialer.close()


async def test_the_system_resolver() -> None:
    assert await look_up("127.0.0.1") == ["127.0.0.1"]
    assert await look_up("fe80::1%eth0") == ["fe80::1%eth0"]
    assert set(await look_up("localhost")) & {"127.0.0.1", "::1"}
