"""The order of what schedulers learn and what they get; the rest is tested over sockets
(tests/integration/executor/test_takeover.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from nereid.services.executor.recent_runs import RecentRuns
from nereid.services.executor.takeover.model_claims import Grant
from nereid.services.executor.takeover.session_instances import (
    ExecutorInstances,
    SessionInstances,
)


class Session:
    """A SessionInstances, as far as others' ends concern it."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def on_granted(self, number: int) -> None:
        self.events.append(number)

    def report_begun(self, ids: Sequence[int], *, always: bool) -> None:
        self.events.append((list(ids), always))


def test_what_has_begun_is_known_before_anything_is_granted() -> None:
    runs = RecentRuns()
    context: Any = SimpleNamespace(recent_runs=runs)
    nothing: Any = None
    shared = ExecutorInstances(nothing, context, nothing)
    session = Session()
    ended, other = (cast("SessionInstances", Session()) for _ in range(2))
    shared.joined[cast("SessionInstances", session)] = None
    shared.ending |= {ended, other}
    runs.begin("a", [12])
    # Its instance has finished, but others have not said yet what they have run.
    shared.deliver([Grant(session, 1)])
    assert session.events == []
    shared.end_session(ended)
    assert session.events == [([12], True)]
    runs.keep([13], b"")
    shared.end_session(other)
    assert session.events[1:] == [([12, 13], True), ([12, 13], False), 1]
    # One that finishes after that.
    runs.keep([14], b"")
    shared.deliver([Grant(session, 2)])
    assert session.events[4:] == [([12, 13, 14], False), 2]
    shared.deliver([])
    assert len(session.events) == 6
