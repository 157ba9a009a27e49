"""One line for each refused peer, kind and interval."""

from __future__ import annotations

import logging

import pytest

from nereid.observability.refusal_log import RefusalLog

EVENT = "%s was refused: %s"


class Clock:
    """A monotonic clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, max_peers: int = 8) -> RefusalLog:
    return RefusalLog(logging.getLogger("refusals"), 60.0, max_peers, clock)


def test_a_peer_is_logged_once_until_the_interval_is_over(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log = make(clock)
    for port in range(50):
        log.report(f"10.0.0.1:{port}", "token", EVENT, "no token")
    log.report("10.0.0.2:1", "token", EVENT, "no token")
    clock.now += 61
    log.report("10.0.0.1:99", "token", EVENT, "no token")
    assert caplog.messages == [
        "10.0.0.1:0 was refused: no token",
        "10.0.0.2:1 was refused: no token",
        "10.0.0.1:99 was refused: no token (and 49 times since the last such line)",
    ]


def test_many_peers_share_a_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = make(clock, max_peers=3)
    for host in range(100):
        log.report(f"10.0.0.{host}:1", "token", EVENT, "no token")
    assert len(caplog.messages) == 4
    # Peers that came long ago make way for new ones.
    clock.now += 121
    log.report("10.0.0.50:1", "token", EVENT, "no token")
    assert len(caplog.messages) == 5
