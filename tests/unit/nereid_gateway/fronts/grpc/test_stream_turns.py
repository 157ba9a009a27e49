"""How many messages of streams a turn of the event loop handles, and in which order they wait."""

from __future__ import annotations

import asyncio

from nereid_gateway.fronts.grpc.stream_turns import STREAM_MESSAGES, StreamTurns

TURN = 128


class Stream:
    """One with so many messages that no turn has handled."""

    def __init__(self, turns: StreamTurns, name: str, messages: int, log: list[str]) -> None:
        self._turns = turns
        self._name = name
        self._messages = messages
        self._log = log
        turns.wait(self)

    def continue_reading(self) -> None:
        for _ in range(min(self._messages, STREAM_MESSAGES)):
            self._messages -= 1
            self._log.append(self._name)
            if self._turns.spend():
                break
        if self._messages:
            self._turns.wait(self)


async def test_a_turn_handles_so_many_messages() -> None:
    turns = StreamTurns()
    assert [turns.spend() for _ in range(TURN)] == [False] * (TURN - 1) + [True]
    assert turns.spent
    await asyncio.sleep(0)
    assert not turns.spent


async def test_streams_that_wait_take_turns() -> None:
    turns = StreamTurns()
    log: list[str] = []
    turns.spend()
    large = [Stream(turns, name, 1000, log) for name in "abcdefghij"]
    Stream(turns, "small", 1, log)
    turns.wait(large[0])  # It waits already.
    await asyncio.sleep(0)
    assert log == [name for name in "abcdefgh" for _ in range(STREAM_MESSAGES)]
    await asyncio.sleep(0)
    # Nobody is served twice before those that have waited for longer.
    names = ["i", "j", "small", "a", "b", "c", "d", "e", "f"]
    assert list(dict.fromkeys(log[TURN:])) == names
    assert log.count("small") == 1
    assert len(log) == 2 * TURN


async def test_a_stream_that_fails_holds_up_no_other() -> None:
    class Broken:
        def continue_reading(self) -> None:
            raise ValueError("a bug")

    turns = StreamTurns()
    log: list[str] = []
    turns.spend()
    turns.wait(Broken())
    Stream(turns, "other", 1, log)
    await asyncio.sleep(0)
    assert log == ["other"]
