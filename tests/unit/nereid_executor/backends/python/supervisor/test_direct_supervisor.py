"""What a worker that serves its stream reports of the traces of its batches."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nereid_executor.backends.python.supervisor.direct_supervisor import read_traced_batch

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
