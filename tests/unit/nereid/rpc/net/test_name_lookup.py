"""The addresses of a name."""

from __future__ import annotations

import asyncio

import pytest

from nereid.rpc.net.name_lookup import NameLookup, look_up


class Resolver:
    """Replies when it is released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released = asyncio.Event()
        self.error: Exception | None = None
        self.is_cancelled = False

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if self.error:
            raise self.error
        return ["10.0.0.2", "10.0.0.1"]


async def test_a_slow_look_up_is_not_begun_anew() -> None:
    resolver = Resolver()
    lookup = NameLookup(resolver.look_up)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await lookup.addresses("name", timeout_s=0.01)
    assert resolver.asked == ["name"]
    resolver.released.set()
    assert await lookup.addresses("name", timeout_s=10) == ["10.0.0.2", "10.0.0.1"]
    assert resolver.asked == ["name"]
    # The result was for one caller; the next one wants what is true now.
    await lookup.addresses("name", timeout_s=10)
    assert resolver.asked == ["name", "name"]
    await lookup.close()


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
async def test_a_failure_is_an_os_error(error: Exception) -> None:
    resolver = Resolver()
    resolver.error = error
    resolver.released.set()
    lookup = NameLookup(resolver.look_up)
    with pytest.raises(OSError, match=str(error)):
        await lookup.addresses("name", timeout_s=10)


async def test_a_cancelled_caller_leaves_the_look_up_to_the_next() -> None:
    resolver = Resolver()
    lookup = NameLookup(resolver.look_up)
    caller = asyncio.ensure_future(lookup.addresses("name", timeout_s=10))
    while not resolver.asked:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    resolver.released.set()
    assert await lookup.addresses("name", timeout_s=10)
    assert resolver.asked == ["name"]


async def test_close_ends_a_look_up() -> None:
    resolver = Resolver()
    lookup = NameLookup(resolver.look_up)
    with pytest.raises(TimeoutError):
        await lookup.addresses("name", timeout_s=0.01)
    await lookup.close()
    assert resolver.is_cancelled


async def test_the_system_resolver() -> None:
    assert await look_up("127.0.0.1") == ["127.0.0.1"]
    assert await look_up("fe80::1%eth0") == ["fe80::1%eth0"]
    assert set(await look_up("localhost")) & {"127.0.0.1", "::1"}
