"""When the mock server's responses are due."""

import pytest

from nereid_perf.mock.service_times import ServiceTimes, Stalls

MS = 1_000_000


def test_each_request_takes_the_delay() -> None:
    times = ServiceTimes(5 * MS)
    assert [times.serve(now) for now in (7, 8, 9)] == [(now, now + 5 * MS) for now in (7, 8, 9)]


def test_only_so_many_are_served_at_a_time_in_their_order() -> None:
    times = ServiceTimes(10, concurrency=2)
    assert [times.serve(now) for now in (0, 1, 2, 3, 30)] == [
        (0, 10),
        (1, 11),
        (10, 20),
        (11, 21),
        (30, 40),
    ]


def test_jitter_is_to_both_sides_and_the_same_for_a_seed() -> None:
    def taken(seed: int) -> list[int]:
        times = ServiceTimes(100, jitter_ns=50, seed=seed)
        return [end - start for start, end in (times.serve(now) for now in range(1000))]

    assert taken(1) == taken(1) != taken(2)
    assert min(taken(1)) < 60
    assert max(taken(1)) > 140
    assert sum(taken(1)) / 1000 == pytest.approx(100, abs=5)


def test_jitter_makes_no_time_negative() -> None:
    times = ServiceTimes(1, jitter_ns=100, seed=1)
    assert all(end >= start for start, end in (times.serve(now) for now in range(100)))


def test_a_stall_begins_after_the_first_request_and_holds_all_that_it_meets() -> None:
    times = ServiceTimes(10, stalls=Stalls(after_ns=100, for_ns=50))
    arrivals = (1000, 1090, 1095, 1100, 1149, 1150)
    assert [times.serve(now)[1] for now in arrivals] == [1010, 1100, 1155, 1160, 1160, 1160]


def test_stalls_come_again() -> None:
    times = ServiceTimes(10, stalls=Stalls(after_ns=100, for_ns=50, every_ns=200))
    times.serve(0)
    assert [times.serve(now)[1] for now in (160, 310, 2110)] == [170, 360, 2160]


def test_work_may_be_longer_than_the_time_between_stalls() -> None:
    times = ServiceTimes(250, stalls=Stalls(after_ns=100, for_ns=50, every_ns=150))
    # 100, stall, 100, stall, 50.
    assert times.serve(0) == (0, 350)


def test_one_that_is_over_does_not_come_again() -> None:
    assert Stalls(100, 50).next_stall(150) is None
    assert Stalls().next_stall(0) is None
