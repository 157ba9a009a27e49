"""The dynamic batcher: which requests share a batch, and how long one waits to grow."""

from __future__ import annotations

import pytest

from nereid.services.scheduler.requests.entry import RequestState
from tests.support.scheduler.batching import US, dynamic, enqueue, entries_of, next_entries, reason
from tests.support.scheduler.samples import entry_of


class TestWithoutDelay:
    """Delay 0: a batch is what queued while the instances were busy."""

    def test_sends_a_lone_request_at_once(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        assert batcher.next_batch(0, instances=1) is None
        (entry,) = enqueue(batcher, entry_of())
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.size, batch.reason) == ([entry], 1, "immediate")

    def test_fills_up_to_the_largest_batch(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        entries = enqueue(batcher, *entries_of(11))
        full = batcher.next_batch(0, instances=1)
        assert full is not None
        assert (full.entries, full.reason) == (entries[:8], "full")
        assert next_entries(batcher) == entries[8:]

    def test_prefers_the_largest_preferred_size(self) -> None:
        batcher = dynamic("preferred_batch_size: [2, 4]")
        entries = enqueue(batcher, *entries_of(7))
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.reason) == (entries[:4], "preferred")
        assert next_entries(batcher) == entries[4:6]
        assert next_entries(batcher) == entries[6:]

    def test_stops_short_of_passing_the_largest_preferred_size(self) -> None:
        batcher = dynamic("preferred_batch_size: 4")
        first, second = enqueue(batcher, entry_of(3), entry_of(3))
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.reason) == ([first], "full")
        assert next_entries(batcher) == [second]

    def test_a_request_above_the_preferred_sizes_runs_alone(self) -> None:
        batcher = dynamic("preferred_batch_size: 4")
        big, small = enqueue(batcher, entry_of(6), entry_of(1))
        assert next_entries(batcher) == [big]
        assert next_entries(batcher) == [small]

    def test_other_shapes_wait_their_turn(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        shapes = [entry_of(key=key) for key in "aabba"]
        enqueue(batcher, *shapes)
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.reason) == (shapes[:2], "shape")
        assert next_entries(batcher) == shapes[2:4]
        assert next_entries(batcher) == shapes[4:]

    def test_without_a_batch_dimension_each_runs_alone(self) -> None:
        batcher = dynamic("", max_batch_size=0)
        entries = enqueue(batcher, *entries_of(2))
        assert [next_entries(batcher), next_entries(batcher)] == [entries[:1], entries[1:]]


class TestFormingAhead:
    def test_a_waiting_batch_grows_until_it_leaves(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        entries = []
        for _ in range(3):
            entries += enqueue(batcher, entry_of())
            batcher.form_batches(0, instances=1)
        assert {entry.state for entry in entries} == {RequestState.BATCHED}
        assert batcher.pending == 3
        assert next_entries(batcher) == entries

    def test_a_preferred_size_closes_it(self) -> None:
        batcher = dynamic("preferred_batch_size: [4, 8]")
        entries = enqueue(batcher, *entries_of(4))
        batcher.form_batches(0, instances=1)
        entries += enqueue(batcher, *entries_of(4))
        assert next_entries(batcher) == entries[:4]
        assert next_entries(batcher) == entries[4:]

    def test_another_shape_closes_it(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        entries = [entry_of(key=key) for key in "aba"]
        for entry in entries:
            enqueue(batcher, entry)
            batcher.form_batches(0, instances=4)
        assert [next_entries(batcher) for _ in range(3)] == [[entry] for entry in entries]

    def test_two_batches_wait_for_each_instance(self) -> None:
        batcher = dynamic("preferred_batch_size: 1", max_batch_size=1)
        entries = enqueue(batcher, *entries_of(5))
        batcher.form_batches(0, instances=2)
        assert [entry.state is RequestState.BATCHED for entry in entries] == [True] * 4 + [False]

    def test_with_a_queue_policy_batches_form_when_an_instance_is_free(self) -> None:
        batcher = dynamic("preferred_batch_size: 8 default_queue_policy { max_queue_size: 9 }")
        entries = enqueue(batcher, *entries_of(2))
        batcher.form_batches(0, instances=1)
        assert {entry.state for entry in entries} == {RequestState.QUEUED}
        assert next_entries(batcher) == entries

    def test_a_cancelled_member_leaves_its_mates_alone(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        first, second, third = enqueue(batcher, *entries_of(3))
        batcher.form_batches(0, instances=1)
        assert batcher.remove_entry(second)
        assert not batcher.remove_entry(second)
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.size) == ([first, third], 2)

    def test_a_batch_whose_entries_are_all_cancelled_is_dropped(self) -> None:
        batcher = dynamic("preferred_batch_size: 4")
        closed = enqueue(batcher, *entries_of(4))
        growing = enqueue(batcher, *entries_of(2))
        batcher.form_batches(0, instances=1)
        for entry in closed + growing:
            batcher.remove_entry(entry)
        assert batcher.pending == 0
        assert batcher.next_batch(0, instances=1) is None
        fresh = enqueue(batcher, entry_of(key="other"))
        assert next_entries(batcher) == fresh

    def test_requeued_entries_come_before_formed_batches(self) -> None:
        batcher = dynamic("preferred_batch_size: 2", max_batch_size=2)
        entries = enqueue(batcher, *entries_of(5))
        lost = batcher.next_batch(0, instances=1)
        assert lost is not None
        batcher.form_batches(0, instances=1)
        batcher.requeue(lost.entries)
        assert {entry.state for entry in entries} == {RequestState.QUEUED}
        assert [next_entries(batcher) for _ in range(3)] == [entries[:2], entries[2:4], entries[4:]]

    def test_a_deadline_reaches_into_a_formed_batch(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        dated, free = entries_of(2)
        dated.deadline_ns = 9
        enqueue(batcher, dated, free)
        batcher.form_batches(0, instances=1)
        assert [entry for entry, _ in batcher.expire_entries(9)] == [dated]
        assert next_entries(batcher) == [free]

    def test_a_deadline_that_was_met_is_forgotten(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        entry = entry_of()
        entry.deadline_ns = 9
        enqueue(batcher, entry)
        assert next_entries(batcher) == [entry]
        assert batcher.expire_entries(10) == []


class TestDelay:
    BATCHING = "preferred_batch_size: [4] max_queue_delay_microseconds: 10"

    def test_waits_for_company(self) -> None:
        batcher = dynamic(self.BATCHING)
        entries = enqueue(batcher, entry_of())
        entries += enqueue(batcher, entry_of(), now_ns=5 * US)
        assert batcher.next_batch(5 * US, instances=1) is None
        assert batcher.wake_at_ns(5 * US) == 10 * US
        batch = batcher.next_batch(10 * US, instances=1)
        assert batch is not None
        assert (batch.entries, batch.reason) == (entries, "delay")
        assert batcher.wake_at_ns(10 * US) is None

    def test_a_preferred_size_does_not_wait(self) -> None:
        batcher = dynamic(self.BATCHING)
        entries = enqueue(batcher, *entries_of(3))
        assert batcher.next_batch(0, instances=1) is None
        entries += enqueue(batcher, entry_of())
        assert reason(batcher.next_batch(0, instances=1)) == "preferred"

    def test_a_full_batch_does_not_wait(self) -> None:
        batcher = dynamic("preferred_batch_size: 8 max_queue_delay_microseconds: 10")
        enqueue(batcher, entry_of(5), entry_of(5))
        assert reason(batcher.next_batch(0, instances=1)) == "full"

    def test_once_exceeded_all_that_fits_is_sent(self) -> None:
        batcher = dynamic(self.BATCHING)
        entries = enqueue(batcher, *entries_of(6))
        assert next_entries(batcher, now_ns=10 * US) == entries

    def test_a_closed_batch_still_grows(self) -> None:
        batcher = dynamic(self.BATCHING)
        first = enqueue(batcher, entry_of())
        batcher.form_batches(10 * US, instances=1)
        second = enqueue(batcher, entry_of(), now_ns=11 * US)
        batcher.form_batches(11 * US, instances=1)
        assert second[0].state is RequestState.BATCHED
        assert next_entries(batcher, now_ns=12 * US) == first + second

    def test_a_batch_of_preferred_size_grows_only_in_time(self) -> None:
        batcher = dynamic("preferred_batch_size: [2, 4] max_queue_delay_microseconds: 10")
        first = enqueue(batcher, *entries_of(2))
        batcher.form_batches(0, instances=1)
        (later,) = enqueue(batcher, entry_of())
        batcher.form_batches(0, instances=1)
        assert later.state is RequestState.QUEUED
        assert batcher.next_batch(1, instances=1).entries == first  # type: ignore[union-attr]
        assert batcher.next_batch(1, instances=1) is None
        assert next_entries(batcher, now_ns=10 * US) == [later]

    def test_a_batch_of_preferred_size_is_not_held_for_more(self) -> None:
        batcher = dynamic(self.BATCHING)
        entries = enqueue(batcher, *entries_of(6))
        assert next_entries(batcher) == entries[:4]

    def test_waiting_batches_merge_after_the_delay(self) -> None:
        batcher = dynamic("preferred_batch_size: 3 max_queue_delay_microseconds: 10")
        entries = []
        for _ in range(2):
            entries += enqueue(batcher, *entries_of(4))
            batcher.form_batches(0, instances=1)
        batch = batcher.next_batch(11 * US, instances=1)
        assert batch is not None
        assert (batch.entries, batch.size, batch.reason) == (entries, 8, "full")

    def test_a_merge_may_leave_a_batch_partly_filled(self) -> None:
        batcher = dynamic("preferred_batch_size: 3 max_queue_delay_microseconds: 10")
        entries = []
        for amount in (4, 3):
            entries += enqueue(batcher, *entries_of(amount))
            batcher.form_batches(0, instances=1)
        batch = batcher.next_batch(11 * US, instances=1)
        assert batch is not None
        assert (batch.entries, batch.reason) == (entries, "delay")
        assert batcher.next_batch(11 * US, instances=1) is None

    @pytest.mark.parametrize(
        ("sizes", "keys", "now_us"),
        [((4, 4), "aa", 10), ((4, 4), "ab", 11), ((5, 4), "aa", 11)],
        ids=["not later", "other shape", "too large"],
    )
    def test_batches_that_do_not_merge(
        self, sizes: tuple[int, int], keys: str, now_us: int
    ) -> None:
        batcher = dynamic("preferred_batch_size: 3 max_queue_delay_microseconds: 10")
        first, second = (entry_of(size, key=key) for size, key in zip(sizes, keys, strict=True))
        for entry in (first, second):
            enqueue(batcher, entry)
            batcher.form_batches(0, instances=1)
        assert next_entries(batcher, now_us * US) == [first]
        assert next_entries(batcher, now_us * US) == [second]

    def test_a_batch_after_a_sealed_one_is_not_merged(self) -> None:
        batcher = dynamic("preferred_batch_size: 8 max_queue_delay_microseconds: 10")
        first, other, third = (entry_of(key=key) for key in "aba")
        enqueue(batcher, first, other, third)
        batcher.form_batches(11 * US, instances=2)
        assert [next_entries(batcher, 30 * US) for _ in range(3)] == [[first], [other], [third]]

    def test_nothing_merges_with_a_batch_that_another_shape_closed(self) -> None:
        batcher = dynamic("preferred_batch_size: [2, 4] max_queue_delay_microseconds: 10")
        first = enqueue(batcher, *entries_of(2))
        batcher.form_batches(0, instances=3)
        first += enqueue(batcher, entry_of(6))
        batcher.form_batches(0, instances=3)
        assert {entry.state for entry in first} == {RequestState.BATCHED}
        batcher.remove_entry(first.pop())
        sealed = enqueue(batcher, *entries_of(2))
        other = enqueue(batcher, entry_of(key="other"))
        batcher.form_batches(0, instances=3)
        assert [next_entries(batcher, 11 * US) for _ in range(3)] == [first, sealed, other]

    def test_a_removed_entry_restarts_the_scan(self) -> None:
        batcher = dynamic(self.BATCHING)
        first, second = enqueue(batcher, *entries_of(2))
        assert batcher.next_batch(0, instances=1) is None
        assert batcher.remove_entry(first)
        assert next_entries(batcher, now_ns=10 * US) == [second]

    def test_a_deadline_wakes_before_the_delay_is_over(self) -> None:
        batcher = dynamic(self.BATCHING)
        entry = entry_of()
        entry.deadline_ns = 3
        enqueue(batcher, entry)
        assert batcher.next_batch(0, instances=1) is None
        assert batcher.wake_at_ns(0) == 3


def test_an_entry_of_another_batcher_is_not_removed() -> None:
    assert not dynamic().remove_entry(entry_of())
