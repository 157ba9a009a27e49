"""What is known about batches' times by their sizes."""

from __future__ import annotations

import pytest

from nereid_scheduler.batching.times.row_times import RowTimes, step_of, steps_up_to

_MS = 1_000_000
_S = 1000 * _MS


def times_of(*measured: tuple[int, float]) -> RowTimes:
    """Each size with its milliseconds, executed six times; the first ones took a second."""
    times = RowTimes()
    for size, milliseconds in measured:
        times.record(size, _S, 0)
        for _ in range(5):
            times.record(size, int(milliseconds * _MS), 0)
    return times


def ms(times: RowTimes, size: int) -> float:
    return round(times.mean_ns(size) / _MS, 2)


class TestSizes:
    def test_small_sizes_are_kept_apart_and_large_ones_in_steps(self) -> None:
        assert [step_of(size) for size in (1, 31, 32, 33, 64, 65, 1000)] == [
            1, 31, 32, 34, 64, 68, 1024,
        ]  # fmt: skip

    @pytest.mark.parametrize("largest", [1, 2, 32, 40, 41, 1 << 20])
    def test_steps_ascend_to_the_largest_size(self, largest: int) -> None:
        steps = steps_up_to(largest)
        assert steps == sorted({*steps})
        assert (steps[0], steps[-1]) == (1, largest)
        assert len(steps) <= 32 + 16 * 16


class TestMeans:
    def test_nothing_is_known_at_first(self) -> None:
        times = RowTimes()
        assert (times.mean_ns(4), times.largest, times.knows_up_to(4)) == (0.0, 0, False)
        # It may have compiled something.
        times.record(4, _S, 0)
        assert (times.mean_ns(4), times.largest) == (0.0, 0)

    def test_of_one_size_others_are_thought_to_take_as_long(self) -> None:
        times = times_of((4, 20))
        assert [ms(times, size) for size in (1, 4, 64)] == [20, 20, 20]
        assert (times.knows_up_to(3), times.knows_up_to(4), times.largest) == (False, True, 4)

    def test_sizes_between_and_beyond_known_ones_are_on_lines(self) -> None:
        times = times_of((2, 12), (4, 16), (8, 18))
        assert [ms(times, size) for size in (1, 2, 3, 4, 6, 8, 14)] == [
            12, 12, 14, 16, 17, 18, 24,
        ]  # fmt: skip

    def test_beyond_known_sizes_nothing_is_faster(self) -> None:
        assert ms(times_of((2, 12), (8, 6)), 64) == 6

    def test_a_mean_follows_slowly_and_a_stall_not_at_all(self) -> None:
        times = times_of((4, 20))
        times.record(4, 22 * _MS, 0)
        assert ms(times, 4) == 20.25
        times.record(4, _S, 0)
        assert ms(times, 4) == 20.25

    def test_one_stall_among_the_first_counts_as_twice_the_mean(self) -> None:
        times = RowTimes()
        for milliseconds in (0, 10, 1000):
            times.record(4, milliseconds * _MS, 0)
        assert ms(times, 4) == 15

    def test_instant_executions_divide_by_nothing(self) -> None:
        times = times_of((1, 0))
        times.record(1, 0, 0)
        assert times.mean_ns(1) == 0.0


class TestShifts:
    @pytest.mark.parametrize("factor", [2.0, 0.5])
    def test_a_model_of_another_speed_moves_all_sizes(self, factor: float) -> None:
        times = times_of((2, 12), (4, 16))
        for _ in range(8):
            times.record(4, int(16 * factor * _MS), 0)
        assert (ms(times, 2), ms(times, 4)) == (12 * factor, 16 * factor)
        assert times.shifts == 1

    def test_instances_of_two_speeds_are_none(self) -> None:
        times = times_of((4, 16))
        for number in range(200):
            times.record(4, (16, 32)[number % 2] * _MS, 0)
        assert (times.shifts, times.spread) == (0, 2.0)


class TestSpread:
    def test_it_is_assumed_then_measured(self) -> None:
        times = times_of((4, 20))
        assert times.spread == 1.25
        for number in range(64):
            times.record(4, (24 if number % 10 == 0 else 20) * _MS, 0)
        assert 1.1 < times.spread < 1.25

    def test_it_is_of_the_last_measurements(self) -> None:
        times = times_of((4, 20))
        for milliseconds in [24, 20] * 20 + [20] * 65:
            times.record(4, milliseconds * _MS, 0)
        assert times.spread < 1.05


class TestStaleSizes:
    def test_they_are_forgotten_while_others_are_executed(self) -> None:
        times = times_of((4, 20), (8, 1000))
        times.record(4, 20 * _MS, 31 * _S)
        times.forget_stale(31 * _S)
        assert ms(times, 8) == 20
        # Nothing is known but these.
        times.forget_stale(100 * _S)
        assert ms(times, 4) == 20
