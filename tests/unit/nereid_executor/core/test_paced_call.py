"""When a call is made that events ask for again and again."""

from __future__ import annotations

from collections.abc import Callable

from nereid_executor.core.paced_call import PacedCall


class Loop:
    """As much of an event loop as is needed, in virtual time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        self.due.append((when, call))

    def run_next(self) -> float:
        self.now, call = self.due.pop(0)
        call()
        return self.now


def test_events_share_a_call_and_calls_keep_their_interval() -> None:
    loop, calls = Loop(), []
    paced = PacedCall(
        loop,  # type: ignore[arg-type]
        lambda: calls.append(loop.now),
        delay_s=1.0,
        interval_s=5.0,
    )
    paced.schedule()
    paced.schedule()
    assert loop.run_next() == 101.0
    assert not loop.due
    paced.schedule()
    assert loop.run_next() == 106.0
    loop.now = 200.0
    paced.schedule()
    assert loop.run_next() == 201.0
    assert calls == [101.0, 106.0, 201.0]
