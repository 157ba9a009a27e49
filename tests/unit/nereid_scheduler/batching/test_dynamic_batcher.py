"""The dynamic batcher: which requests share a batch, and how long one waits to grow."""

import pytest

from nereid_scheduler.core.requests.entry import RequestState
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

    def test_other_shapes_wait_their_turn(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        shapes = [entry_of(key=key) for key in "aabb"]
        enqueue(batcher, *shapes)
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        assert (batch.entries, batch.reason) == (shapes[:2], "shape")
        assert next_entries(batcher) == shapes[2:]

    @pytest.mark.parametrize(
        ("keys", "batches"),
        [
            ("abab", ["aa", "bb"]),
            ("abcab", ["aa", "bb", "c"]),
            ("abaaaaaaaba", ["aaaaaaaa", "bb", "a"]),
        ],
        ids=["the oldest leads", "in formed batches as well", "as far as they fit"],
    )
    def test_one_shape_joins_from_behind_others(self, keys: str, batches: list[str]) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        enqueue(batcher, *(entry_of(key=key) for key in keys))
        batcher.form_batches(0, instances=1)
        left = []
        while batcher.pending:
            left.append("".join(str(entry.key) for entry in next_entries(batcher)))
        assert left == batches

    def test_one_that_does_not_fit_keeps_its_place(self) -> None:
        batcher = dynamic("preferred_batch_size: 8")
        first, other, large, small = enqueue(
            batcher,
            entry_of(6, key="a"),
            entry_of(key="b"),
            entry_of(3, key="a"),
            entry_of(key="a"),
        )
        assert next_entries(batcher) == [first]
        assert next_entries(batcher) == [other]
        assert next_entries(batcher) == [large, small]

    def test_levels_are_kept_apart(self) -> None:
        batcher = dynamic("preferred_batch_size: 8 priority_levels: 2 default_priority_level: 1")
        keys_and_levels = [("a", 1), ("b", 1), ("a", 2)]
        entries = [entry_of(key=key, level=level) for key, level in keys_and_levels]
        enqueue(batcher, *entries)
        assert [next_entries(batcher) for _ in entries] == [[each] for each in entries]

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

    def test_waiting_batches_merge_after_the_delay(self) -> None:
        batcher = dynamic("preferred_batch_size: 3 max_queue_delay_microseconds: 10")
        entries = []
        for _ in range(2):
            entries += enqueue(batcher, *entries_of(4))
            batcher.form_batches(0, instances=1)
        batch = batcher.next_batch(11 * US, instances=1)
        assert batch is not None
        assert (batch.entries, batch.size, batch.reason) == (entries, 8, "full")

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


def test_an_entry_of_another_batcher_is_not_removed() -> None:
    assert not dynamic().remove_entry(entry_of())
