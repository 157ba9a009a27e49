"""The sums of what several schedulers have counted of one model version."""

from nereid.observability.counts.count_store import CountStore, combine
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb

_PAGE = """# HELP nv_inference_count x
# TYPE nv_inference_count counter
nv_inference_count{{model="m",version="1"}} {}
"""


def counts(
    record: int, loaded_ns: int, number: int = 1, *, model: str = "m", continues: bool = True
) -> pb.VersionCounts:
    message = pb.VersionCounts(
        id=record,
        model=model,
        version="1",
        loaded_ns=loaded_ns,
        continues=continues,
        number=number,
        exposition=_PAGE.format(number).encode(),
    )
    message.statistics.name, message.statistics.inference_count = model, number
    return message


def sums(store: CountStore) -> dict[str, int]:
    return {each.model: each.statistics.inference_count for each in store.shared()}


def ids(store: CountStore) -> set[int]:
    return {each.id for each in store.all()}


def test_of_one_record_the_later_state_counts() -> None:
    store = CountStore()
    for number in (3, 5, 4, 5):
        store.add(counts(1, 10, number))
    assert store.change == 2
    assert [each.number for each in store.all()] == [5]
    assert sums(store) == {}
    store.add(counts(2, 20, 7))
    assert sums(store) == sums(store) == {"m": 12}
    store.add(counts(2, 20, 8))
    assert sums(store) == {"m": 13}
    assert [each.id for each in store.changed_after(2)] == [2]
    assert store.changed_after(store.change) == []
    (total,) = store.shared()
    assert total.exposition == _PAGE.format(13).encode()
    assert list(total.includes) == [1, 2]
    # Each version is its own.
    store.add(counts(3, 30, 1, model="n"))
    assert sums(store) == {"m": 13}


def test_a_load_by_a_client_begins_anew_and_what_was_before_it_is_not_kept() -> None:
    store = CountStore()
    store.add(counts(1, 10))
    store.add(counts(2, 20, continues=False))
    assert ids(store) == {2}
    assert store.latest_load_ns == 20
    # Of before that load, from a gateway that does not know it.
    store.add(counts(1, 10, 9))
    store.add(counts(3, 15))
    assert ids(store) == {2}
    store.add(counts(4, 30))
    assert ids(store) == {2, 4}
    # It comes after them: its predecessors go, and those that continue it stay.
    other = CountStore()
    for each in (counts(1, 10), counts(4, 30), counts(2, 20, continues=False)):
        other.add(each)
    assert ids(other) == {2, 4}


def test_an_unloaded_model_is_forgotten() -> None:
    store = CountStore()
    for each in (counts(1, 10), counts(2, 20), counts(3, 10, model="n")):
        store.add(each)
    assert store.versions_of([2, 77]) == {("m", "1")}
    store.end_loads([("m", "1"), ("q", "1")])
    assert ids(store) == {3}
    assert store.latest_load_ns == 20
    assert store.changed_after(0) == [counts(3, 10, model="n")]
    store.remove([3, 77])
    assert ids(store) == set()


def test_the_oldest_records_become_one_and_everybody_makes_the_same() -> None:
    one, other = CountStore(max_records=4), CountStore(max_records=4)
    for record in range(1, 10):
        one.add(counts(record, record, 10))
    for record in reversed(range(1, 10)):
        other.add(counts(record, record, 10))
    for each in [*one.all()]:
        other.add(each)
    for each in [*other.all()]:
        one.add(each)
    assert ids(one) == ids(other)
    assert sums(one) == sums(other) == {"m": 90}
    assert len(ids(one)) <= 4
    # What is part of a sum is not counted beside it.
    one.add(counts(1, 1, 10))
    assert sums(one) == {"m": 90}


def test_of_two_sums_the_one_of_more_counts() -> None:
    first, second, third = (counts(each, each, 10) for each in (1, 2, 3))
    small, large = combine([first, second]), combine([first, second, third])
    assert set(combine([small, third]).includes) == {1, 2, 3, small.id}
    for order in ((small, large), (large, small)):
        store = CountStore()
        for each in order:
            store.add(each)
        assert ids(store) == {large.id}


def test_models_that_nobody_counts_any_more_are_forgotten_in_the_end() -> None:
    store = CountStore(max_versions=2)
    for record, model in enumerate("abc"):
        store.add(counts(record, 1, model=model))
        store.add(counts(0, 1, record + 10, model="a"))
    assert {each.model for each in store.all()} == {"a", "c"}


def test_statistics_are_added_by_field_batch_size_and_index() -> None:
    first, second = kserve_pb2.ModelStatistics(), kserve_pb2.ModelStatistics()
    for message, factor in ((first, 1), (second, 10)):
        message.name, message.version = "m", "1"
        message.last_inference = 5 * factor
        message.inference_count, message.execution_count = 3 * factor, 2 * factor
        message.inference_stats.success.count = 4 * factor
        message.inference_stats.success.ns = 400 * factor
        message.inference_stats.fail.SetInParent()
        for size in (8, factor):
            batch = message.batch_stats.add(batch_size=size)
            batch.compute_infer.count, batch.compute_infer.ns = factor, 7 * factor
        message.response_stats["0"].success.count = factor
    records = [counts(1, 1), counts(2, 2), pb.VersionCounts(id=3, model="m", version="1")]
    records[0].statistics.CopyFrom(first)
    records[1].statistics.CopyFrom(second)
    total = combine(records).statistics
    assert (total.name, total.version, total.last_inference) == ("m", "1", 50)
    assert (total.inference_count, total.execution_count) == (33, 22)
    assert (total.inference_stats.success.count, total.inference_stats.success.ns) == (44, 4400)
    assert total.inference_stats.HasField("fail")
    assert not total.inference_stats.HasField("queue")
    sizes = [(each.batch_size, each.compute_infer.count) for each in total.batch_stats]
    assert sizes == [(1, 1), (8, 11), (10, 10)]
    assert total.response_stats["0"].success.count == 11
