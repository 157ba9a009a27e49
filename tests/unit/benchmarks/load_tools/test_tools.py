"""What a tool takes for a request."""

import pytest

from benchmarks.load_tools.tools import cpu_per_request_us


def test_neither_a_tool_s_start_nor_its_end_counts() -> None:
    # A second of imports, ten of load at 100 requests and 2 ms of CPU a second, a second of report.
    looks = [(float(s), 1.0 + 0.002 * s, 100 * s + 7) for s in range(11)]
    looks = [(-1.0, 0.0, 7), *looks, (11.0, 2.0, 1007), (12.0, 2.5, 1007)]
    assert cpu_per_request_us(looks, 1.0, 1.0) == pytest.approx(20)


def test_without_the_server_s_count_the_rate_stands_for_it() -> None:
    looks = [(s / 10, 0.002 * s / 10, None) for s in range(101)]
    assert cpu_per_request_us(looks, 100.0, 1.0) == pytest.approx(20)


def test_a_server_that_served_nothing_divides_by_nothing() -> None:
    assert cpu_per_request_us([(0.0, 0.5, 3), (1.0, 0.5, 3)], 1.0, 1.0) == 0
