"""What a request costs the scheduler does not depend on the size of the mesh."""

from __future__ import annotations

import pytest

from benchmarks.simulation.measure import count_lines, in_virtual_time, measure
from benchmarks.simulation.mesh import Size
from benchmarks.simulation.virtual_time import Clock
from tests.support.forms import pure_only

BATCHED = {"scheduler": "dynamic_batching { }", "max_batch_size": 8}


def lines(size: Size) -> float:
    counted = in_virtual_time(Clock(), count_lines(size, 300))
    assert isinstance(counted, float)
    return counted


@pure_only
@pytest.mark.parametrize(
    ("small", "large"),
    [
        (Size(1, 1), Size(64, 1)),
        (Size(1, 1, **BATCHED), Size(32, 1, **BATCHED)),  # type: ignore[arg-type]
        (Size(2, 10), Size(2, 300)),
        (Size(2, 64), Size(2, 64, schedulers=4)),
    ],
    ids=["executors", "executors-batched", "models", "schedulers"],
)
def test_a_request_costs_as_many_lines_on_a_large_mesh(small: Size, large: Size) -> None:
    assert lines(large) == pytest.approx(lines(small), rel=0.1)


@pytest.mark.parametrize("limited", [False, True], ids=["all", "limited"])
def test_every_executor_is_busy_while_requests_wait(limited: bool) -> None:
    size = Size(8, 3 if limited else 1, limited=limited)
    clock = Clock()
    _, utilisation, batch, _ = in_virtual_time(clock, measure(size, size, clock, 400, 2))
    assert utilisation == pytest.approx(1, abs=0.02)
    assert batch == 1


def test_schedulers_share_the_requests() -> None:
    size, clock = Size(1, 64, schedulers=4), Clock()
    *_, share = in_virtual_time(clock, measure(size, Size(1, 1), clock, 100, 1))
    assert 1 / 4 <= share <= 0.4
