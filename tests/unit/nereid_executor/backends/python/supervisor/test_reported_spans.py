"""What a worker that serves its stream reports of the traces of its batches."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from nereid.observability.tracing import Span
from nereid_executor.backends.python.supervisor.reported_spans import (
    ReportedSpans,
    read_traced_batch,
)

CONTEXT = f"00{'ab' * 24}01"
STATE = "61" * 512
TIMES = [1, 2, 3, 4]


def test_the_traces_of_a_batch() -> None:
    now_ns = time.perf_counter_ns()
    read = read_traced_batch([CONTEXT, CONTEXT + STATE], [0, 0, 1, now_ns], 2)
    assert read == ([bytes.fromhex(CONTEXT), bytes.fromhex(CONTEXT + STATE)], [0, 0, 1, now_ns])
    assert read_traced_batch([], TIMES, 1) == ([], TIMES)


@pytest.mark.parametrize(
    ("contexts", "times"),
    [
        ([CONTEXT] * 9, TIMES),
        ([CONTEXT] * 100_000, TIMES),
        ([CONTEXT[:-2]], TIMES),
        ([f"{CONTEXT[:-2]}00"], TIMES),
        ([f"{CONTEXT}{STATE}61"], TIMES),
        (["61" * (1 << 20)], TIMES),
        ([""], TIMES),
        (["zz"], TIMES),
        ([7], TIMES),
        (7, TIMES),
        ([CONTEXT], 7),
        ([CONTEXT], TIMES[:3]),
        ([CONTEXT], [*TIMES, 5]),
        ([CONTEXT], [-1, 2, 3, 4]),
        ([CONTEXT], [1, 2, 3, 1 << 64]),
        ([CONTEXT], [1, 2, 3, 4.5]),
        ([CONTEXT], [1, 2, 3, True]),
        ([CONTEXT], [1, 2, 3, "4"]),
    ],
)
def test_traces_that_no_batch_has_are_refused(contexts: Any, times: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_traced_batch(contexts, times, 8)


class Tracer:
    """Counts the requests whose spans it gets."""

    def __init__(self) -> None:
        self.requests = 0

    def record(self, *spans: Span) -> None:
        assert len(spans) == 4
        self.requests += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize("bounded", [True, False])
def test_a_confined_worker_does_not_fill_the_queue_of_spans(
    caplog: pytest.LogCaptureFixture, bounded: bool
) -> None:
    tracer, now = Tracer(), [0.0]
    spans = ReportedSpans("m_0", 100, bounded=bounded, now=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            spans.record(tracer, [CONTEXT] * 100, TIMES)
    assert tracer.requests == (256 if bounded else 5000)
    lines = ["spans of instance m_0 dropped: its worker reports more than 256 requests/s"]
    assert [record.getMessage() for record in caplog.records] == (lines if bounded else [])
    # What is left of a second's rate counts for a part of a batch.
    now[0] = 0.25
    spans.record(tracer, [CONTEXT] * 100, TIMES)
    assert tracer.requests == (320 if bounded else 5100)
