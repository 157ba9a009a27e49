"""Of lines that say the same, some at once and then a few a second."""

from __future__ import annotations

import io
import logging

from nereid.observability.logging import LogSettings, set_up_logging
from nereid.observability.repeat_limit import RepeatLimit


class Clock:
    """A monotonic clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(text: str = "model '%s' failed", *args: object, level: int = logging.WARNING,
           name: str = "a") -> logging.LogRecord:  # fmt: skip
    return logging.LogRecord(name, level, __file__, 1, text, args, None)


def admit(limit: RepeatLimit, each: logging.LogRecord) -> str | None:
    admitted = limit.admit(each)
    return None if admitted is None else admitted.getMessage()


def test_what_is_left_out_is_counted_in_the_next_line() -> None:
    clock = Clock()
    limit = RepeatLimit(logging.WARNING, burst=2, per_s=1, clock=clock)
    lines = [admit(limit, record("model '%s' failed", number)) for number in range(5)]
    assert lines == ["model '0' failed", "model '1' failed", None, None, None]
    clock.now += 1
    again = admit(limit, record("model '%s' failed", 5))
    assert again == "model '5' failed (and 3 such lines before it, which were left out)"
    assert admit(limit, record("model '%s' failed", 6)) is None
    clock.now += 60
    assert admit(limit, record("model '%s' failed", 7)) == (
        "model '7' failed (and 1 such lines before it, which were left out)"
    )
    assert admit(limit, record("model '%s' failed", 8)) == "model '8' failed"


def test_other_events_and_levels_are_not_concerned() -> None:
    limit = RepeatLimit(logging.WARNING, burst=1, per_s=1, clock=Clock())
    assert admit(limit, record()) is not None
    assert admit(limit, record()) is None
    assert admit(limit, record("another")) == "another"
    assert admit(limit, record(name="b")) is not None
    for _ in range(3):
        assert admit(limit, record("loaded", level=logging.INFO)) == "loaded"


def test_long_messages_are_cut() -> None:
    limit = RepeatLimit(logging.WARNING, clock=Clock())
    message = admit(limit, record("a request for %s", "x" * 10_000))
    assert message is not None
    assert len(message) < 5000
    assert message.endswith("... (10014 characters)")


def test_very_many_events_share_a_limit() -> None:
    limit = RepeatLimit(logging.WARNING, burst=1, per_s=1, clock=Clock())
    admitted = [limit.admit(record(f"event {number}")) for number in range(3000)]
    assert sum(each is not None for each in admitted) <= 1025


def test_the_log_of_a_service_has_it() -> None:
    stream = io.StringIO()
    before, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        set_up_logging(LogSettings(), "gateway", stream)
        for number in range(5000):
            logging.getLogger("some").warning("sequence %s has a conflict", number)
    finally:
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel(level)
    assert 1000 < len(stream.getvalue()) < 30_000
