"""The batcher of models with max_batch_tokens: similar lengths leave together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import DeadlineExceeded, Unavailable
from nereid_scheduler.batching.batcher import Batcher, make_batcher
from nereid_scheduler.batching.times.batch_times import BatchTimes
from nereid_scheduler.core.instances.router import Router
from nereid_scheduler.core.requests.entry import Entry, RequestState
from tests.support.scheduler.batching import US, enqueue, execution, next_entries, reason
from tests.support.scheduler.samples import entry_of, model_of


def batcher_of(
    batching: str = "", tokens: int = 256, times: BatchTimes | None = None, more: str = ""
) -> Batcher:
    config = model_of(
        'max_batch_size: 8 input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }'
        f" dynamic_batching {{ {batching} }}"
        ' parameters { key: "padding" value { string_value: "ids[0]: 16 32 64" } }'
        f' parameters {{ key: "max_batch_tokens" value {{ string_value: "{tokens}" }} }} {more}'
    )
    router: Router[int] = Router()
    return make_batcher(config, router, times)


def of_lengths(*lengths: int, key: str = "", level: int = 1) -> list[Entry]:
    return [entry_of(key=key, level=level, length=length) for length in lengths]


def lengths_of(batcher: Batcher) -> list[int]:
    return [entry.valid.length for entry in next_entries(batcher)]


def test_similar_lengths_leave_together_and_the_oldest_leads() -> None:
    batcher = batcher_of()
    assert batcher.next_batch(0, instances=1) is None
    entries = enqueue(batcher, *of_lengths(8, 60, 9, 61, 8))
    batch = batcher.next_batch(0, instances=1)
    assert batch is not None
    assert batch.entries == [entries[index] for index in (0, 2, 4)]
    assert (batch.size, batch.tokens, batch.reason) == (3, 27, "length")
    assert {entry.state for entry in batch.entries} == {RequestState.EXECUTING}
    assert batcher.pending == 2
    batch = batcher.next_batch(0, instances=1)
    assert batch is not None
    assert (batch.entries, batch.reason) == ([entries[1], entries[3]], "immediate")
    assert batcher.pending == 0


def test_the_budget_and_the_rows_end_a_batch() -> None:
    batcher = batcher_of("max_queue_delay_microseconds: 10")
    enqueue(batcher, *of_lengths(*[64] * 5, *[8] * 8))
    assert batcher.has_grown(0, instances=1)
    assert reason(batcher.next_batch(0, instances=1)) == "tokens"
    assert not batcher.has_grown(0, instances=1)
    assert lengths_of(batcher) == [64]
    assert batcher.has_grown(0, instances=1)
    assert reason(batcher.next_batch(0, instances=1)) == "full"
    assert not batcher.has_grown(0, instances=1)


def test_a_request_beyond_the_budget_runs_alone() -> None:
    batcher = batcher_of(tokens=32)
    enqueue(batcher, *of_lengths(64, 64))
    assert lengths_of(batcher) == [64]
    assert lengths_of(batcher) == [64]


def test_other_shapes_do_not_join() -> None:
    batcher = batcher_of()
    first, other = of_lengths(8) + of_lengths(8, key="other")
    enqueue(batcher, first, other)
    batch = batcher.next_batch(0, instances=1)
    assert batch is not None
    assert (batch.entries, batch.reason) == ([first], "shape")
    assert next_entries(batcher) == [other]


def test_the_less_urgent_join_once_all_of_the_more_urgent_have() -> None:
    batcher = batcher_of("priority_levels: 2 default_priority_level: 2")
    low = enqueue(batcher, *of_lengths(8, 8, level=2))
    high = enqueue(batcher, *of_lengths(8, 60, level=1))
    assert next_entries(batcher) == [high[0]]
    assert next_entries(batcher) == [high[1]]
    high = enqueue(batcher, *of_lengths(9, level=1))
    assert next_entries(batcher) == [*high, *low]
    assert batcher.next_batch(0, instances=1) is None


def test_only_a_batch_of_all_waits_for_the_delay() -> None:
    batcher = batcher_of("max_queue_delay_microseconds: 10")
    assert batcher.closes_ns(0) is None
    enqueue(batcher, *of_lengths(8), now_ns=1 * US)
    enqueue(batcher, *of_lengths(9), now_ns=3 * US)
    assert batcher.next_batch(3 * US, instances=1) is None
    assert batcher.wake_at_ns(3 * US) == batcher.closes_ns(3 * US) == 11 * US
    assert batcher.closes_ns(11 * US) is None
    assert reason(batcher.next_batch(11 * US, instances=1)) == "delay"
    enqueue(batcher, *of_lengths(8, 60), now_ns=20 * US)
    assert batcher.closes_ns(20 * US) is None
    assert reason(batcher.next_batch(20 * US, instances=1)) == "length"
    assert batcher.closes_ns(20 * US) == 30 * US


def test_entries_are_removed_refused_and_expire_as_in_other_queues() -> None:
    batcher = batcher_of("default_queue_policy { max_queue_size: 3 }")
    first, second, third = of_lengths(8, 8, 8)
    third.deadline_ns = 5
    enqueue(batcher, first, second, third)
    with pytest.raises(Unavailable):
        enqueue(batcher, *of_lengths(8))
    assert batcher.remove_entry(first)
    assert not batcher.remove_entry(first)
    ((entry, error),) = batcher.expire_entries(6)
    assert (entry, type(error)) == (third, DeadlineExceeded)
    assert next_entries(batcher) == [second]


def test_requests_of_a_lost_instance_come_back_to_the_front() -> None:
    batcher = batcher_of()
    entries = enqueue(batcher, *of_lengths(8, 60, 8))
    lost = next_entries(batcher)
    batcher.requeue(lost)
    batcher.form_batches(0, instances=1)
    assert batcher.pending == 3
    assert next_entries(batcher) == lost == [entries[0], entries[2]]
    assert next_entries(batcher) == [entries[1]]


@pytest.mark.parametrize(("between", "led"), [(30, [8, 8]), (31, [8])])
def test_only_the_first_requests_are_looked_at(between: int, led: list[int]) -> None:
    batcher = batcher_of()
    enqueue(batcher, *of_lengths(8, *[60] * between, 8))
    assert lengths_of(batcher) == led


def test_a_latency_target_limits_the_rows() -> None:
    batcher = batcher_of(more='parameters { key: "target_p99_us" value { string_value: "10000" } }')
    enqueue(batcher, *of_lengths(8, 8))
    # Until executions are measured, each has one request.
    assert lengths_of(batcher) == [8]


def test_where_executions_are_dear_and_tokens_are_not_all_leave_together() -> None:
    times = BatchTimes()
    batcher = batcher_of(times=times)
    for length in range(1, 33):
        enqueue(batcher, *of_lengths(length))
        batch = batcher.next_batch(0, instances=1)
        assert batch is not None
        times.record(0, batch, execution(4_000 * US + length), waited=False)
    enqueue(batcher, *of_lengths(8, 60, 30))
    assert lengths_of(batcher) == [8, 60, 30]


def test_on_gpus_lengths_count_as_they_are_padded() -> None:
    times = BatchTimes()
    batcher = batcher_of(times=times)
    enqueue(batcher, *of_lengths(8))
    batch = batcher.next_batch(0, instances=1)
    assert batch is not None
    times.record(0, batch, execution(US, gpu_uuid="GPU-1"), waited=False)
    enqueue(batcher, *of_lengths(17, 32, 16, 33))
    batch = batcher.next_batch(0, instances=1)
    assert batch is not None
    assert [entry.valid.length for entry in batch.entries] == [17, 32]
    assert batch.tokens == 64


def test_instances_share_the_open_requests() -> None:
    router: Router[int] = Router()
    for number in range(2):
        router.add_instance(number)
    config = model_of(
        'max_batch_size: 8 input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }'
        ' dynamic_batching { } parameters { key: "padding" value { string_value: "ids[0]: 16" } }'
        ' parameters { key: "max_batch_tokens" value { string_value: "256" } }'
    )
    times = BatchTimes()
    batcher = make_batcher(config, router, times, range(4))
    (entry,) = enqueue(batcher, *of_lengths(8))
    batch = batcher.next_batch(0, instances=2)
    assert batch is not None
    assert batch.entries == [entry]
    times.record(0, batch, execution(10_000 * US), waited=False)
    enqueue(batcher, *of_lengths(8, 8, 8))
    batch = batcher.next_batch(0, instances=2)
    assert batch is not None
    assert (len(batch.entries), batch.reason) == (2, "shared")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("enqueue"), st.integers(1, 64), st.integers(1, 2)),
            st.tuples(st.just("next"), st.integers(0, 1), st.booleans()),
            st.tuples(st.just("remove"), st.integers(0, 63), st.none()),
            st.tuples(st.just("expire"), st.integers(1, 40), st.none()),
        ),
        max_size=60,
    ),
    st.sampled_from([0, 5]),
)
def test_each_entry_leaves_once_and_the_first_of_the_most_urgent_leads(
    events: list[tuple[Any, ...]], delay_us: int
) -> None:
    batcher = batcher_of(
        f"priority_levels: 2 default_priority_level: 1 max_queue_delay_microseconds: {delay_us}"
    )
    now_ns, inside = US, list[Entry]()
    for kind, number, more in events:
        if kind == "enqueue":
            entry = entry_of(1 + number % 2, level=more, length=number)
            entry.deadline_ns = now_ns + 50 * US if number % 3 == 0 else None
            inside += enqueue(batcher, entry, now_ns=now_ns)
        elif kind == "next":
            batch = batcher.next_batch(now_ns, instances=1)
            if batch is not None:
                assert batch.size <= 8
                assert batch.tokens <= 256
                assert min(inside, key=lambda entry: entry.level) in batch.entries
                inside = [entry for entry in inside if entry not in batch.entries]
                if more:
                    batcher.requeue(batch.entries)
                    inside = batch.entries + inside
        elif kind == "remove":
            if inside:
                assert batcher.remove_entry(inside.pop(number % len(inside)))
        else:
            now_ns += number * US
            expired = {entry for entry, _ in batcher.expire_entries(now_ns)}
            due = {entry for entry in inside if entry.deadline_ns and entry.deadline_ns <= now_ns}
            assert expired == due
            inside = [entry for entry in inside if entry not in expired]
        assert batcher.pending == len(inside)
    now_ns += delay_us * US
    while inside:
        batch = batcher.next_batch(now_ns, instances=1)
        assert batch is not None
        assert set(batch.entries) <= set(inside)
        inside = [entry for entry in inside if entry not in batch.entries]
    assert batcher.next_batch(now_ns, instances=1) is None
