"""When the client was the bottleneck."""

import pytest

from nereid_perf.load.client_cost import client_cost


@pytest.mark.parametrize(
    ("workers", "delayed", "is_bottleneck"),
    [
        ([(1.0, 0.0)], 0, False),
        ([(9.0, 0.0), (1.0, 0.0)], 0, True),
        # It did not get the CPU that it wanted.
        ([(4.0, 5.0)], 0, True),
        ([(3.0, 0.0)], 10, False),
        # Bursts were too much for it, if not their mean.
        ([(3.0, 0.0)], 11, True),
        # The machine is noisy: it has hardly done anything.
        ([(1.0, 3.0)], 500, False),
        ([], 0, False),
    ],
)
def test_a_client_that_is_busy_or_behind_is_the_bottleneck(
    workers: list[tuple[float, float]], delayed: int, is_bottleneck: bool
) -> None:
    cost = client_cost(workers, wall_s=10.0, requests=1000, delayed=delayed)
    assert cost.is_bottleneck is is_bottleneck
    assert cost.delayed == delayed


def test_cost_is_that_of_all_workers_and_busy_that_of_the_busiest() -> None:
    cost = client_cost([(1.0, 0.0), (3.0, 0.0)], wall_s=10.0, requests=1000, delayed=0)
    assert cost.cpu_us == pytest.approx(4000)
    assert cost.busy == pytest.approx(0.3)


def test_without_a_request_there_is_no_division_by_zero() -> None:
    assert client_cost([(1.0, 0.0)], wall_s=1.0, requests=0, delayed=0).cpu_us == 1e6
