"""Which responses say where their request's time went, and in which words."""

from __future__ import annotations

import re
from time import monotonic_ns

import pytest

from nereid.core.wire.messages import RequestTimings
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.core.response_timings import TimedRequests, server_timing

MS = 1_000_000


def text_of(timings: RequestTimings | None, ago_ms: int = 1000) -> str:
    record = RequestRecord("http", monotonic_ns() - ago_ms * MS)
    record.timings = timings
    return server_timing(record)


def ms_of(name: str, text: str) -> float:
    found = re.search(rf"\b{name};dur=([0-9.]+)", text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize("asked", [None, "", "0", "1 ", "true", b"2", "1", b"1"])
def test_a_choice_includes_requests_by_their_header(asked: str | bytes | None) -> None:
    assert TimedRequests("requested").include(asked) is (asked in ("1", b"1"))
    assert TimedRequests("always").include(asked)
    assert not TimedRequests("never").include(asked)


def test_all_that_is_known_is_said_in_its_order() -> None:
    phases = (("cache", 2 * MS), ("queue", 3 * MS), ("inference", 4_500_000))
    text = text_of(RequestTimings(phases, 8, 'a "b" \\ \r\nSet-Cookie: é', 2))
    expected = (
        "cache;dur=2.000;desc=miss, queue;dur=3.000, inference;dur=4.500, "
        r"network;dur=[0-9.]+, total;dur=[0-9.]+, batch-size;desc=8, "
        r'instance;desc="a \?b\? \? \?\?Set-Cookie: \?", attempt;desc=2'
    )
    assert re.fullmatch(expected, text)
    assert ms_of("network", text) == pytest.approx(ms_of("total", text) - 9.5, abs=0.002)


def test_a_hit_is_one() -> None:
    assert "cache;dur=1.000;desc=hit, " in text_of(RequestTimings((("cache", MS),), cached=True))


def test_of_a_scheduler_that_says_nothing_the_whole_is_known() -> None:
    text = text_of(None)
    assert re.fullmatch(r"network;dur=[0-9.]+, total;dur=[0-9.]+", text)
    assert ms_of("network", text) == ms_of("total", text) >= 1000


def test_parts_are_never_more_than_the_whole() -> None:
    """The clocks of several hosts need not agree."""
    phases = (("queue", 600 * MS), ("inference", 10**6 * MS), ("output", MS))
    text = text_of(RequestTimings(phases))
    assert ms_of("queue", text) == 600
    assert ms_of("output", text) == ms_of("network", text) == 0
    parts = ms_of("queue", text) + ms_of("inference", text)
    assert parts == pytest.approx(ms_of("total", text), abs=0.002)
