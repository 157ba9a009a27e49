"""Agreement of a server's count with a client's, and CPU seconds as figures per request.

Kept as a test of an oracle: a count that is not compared lets every benchmark pass.
"""

from collections import Counter

import pytest

from benchmarks.failure import BenchError
from benchmarks.figures.samples import Cell
from benchmarks.measure import cpu_per_request_us, require_counts

GRPC = Cell("mlp", "nereid", "grpc", 16)
HTTP = Cell("mlp", "nereid", "http", 16)


@pytest.mark.parametrize(
    ("cell", "served", "failed"),
    [(GRPC, 100, 0), (HTTP, 100, 0), (HTTP, 116, 0), (HTTP, 100, 16), (HTTP, 104, 3)],
)
def test_counts_agree(cell: Cell, served: int, failed: int) -> None:
    require_counts(cell, 100, served, failed)


@pytest.mark.parametrize(
    ("cell", "served", "failed"),
    [(GRPC, 99, 1), (GRPC, 99, 0), (GRPC, 101, 0), (GRPC, 100, 1), (HTTP, 117, 0), (HTTP, 99, 1)],
)
def test_counts_disagree(cell: Cell, served: int, failed: int) -> None:
    with pytest.raises(BenchError, match="the client counted 100"):
        require_counts(cell, 100, served, failed)


def test_cpu_per_request() -> None:
    before = Counter({"server": 1.0, "idle": 2.0})
    after = Counter({"server": 1.5, "idle": 2.0, "new": 0.25})
    used = cpu_per_request_us(before, after, 1000)
    assert used == {"new": pytest.approx(250), "server": pytest.approx(500)}
