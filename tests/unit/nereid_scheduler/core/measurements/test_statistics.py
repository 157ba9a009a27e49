"""A version's counters of requests and executions."""

from collections.abc import Callable
from dataclasses import replace

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.observability.metrics import OTHER
from nereid_scheduler.core.measurements.statistics import (
    MAX_RESPONSES,
    GpuShare,
    ModelStatistics,
)
from nereid_scheduler.core.requests.entry import Batch, Entry
from nereid_scheduler.core.requests.execution import Execution
from tests.support.scheduler.samples import end_whole, entry_of, records_of

_TIMES = (1000, 2000, 1_700_000_000_000, 10, 200, 30)
EXECUTION = Execution(*_TIMES)


def entry(size: int, received_ns: int, enqueued_ns: int) -> Entry:
    one = entry_of(size)
    one.received_ns, one.enqueued_ns = received_ns, enqueued_ns
    return one


def test_each_member_counts_with_the_whole_execution() -> None:
    records = records_of()
    statistics = records.statistics
    members = [entry(1, 100, 110), entry(3, 200, 220)]
    end_whole(records, Batch(members, 4, "full"), EXECUTION)
    message = statistics.to_proto("m", "2")
    assert (message.name, message.version) == ("m", "2")
    assert (message.inference_count, message.execution_count) == (4, 1)
    assert message.last_inference == EXECUTION.epoch_ms
    stats = message.inference_stats
    assert (stats.success.count, stats.success.ns) == (2, 1900 + 1800)
    assert (stats.queue.count, stats.queue.ns) == (2, 890 + 780)
    assert (stats.compute_input.count, stats.compute_input.ns) == (2, 20)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (2, 400)
    assert (stats.compute_output.count, stats.compute_output.ns) == (2, 60)
    (batch,) = message.batch_stats
    assert batch.batch_size == 4
    assert (batch.compute_input.count, batch.compute_input.ns) == (1, 10)
    assert (batch.compute_infer.count, batch.compute_infer.ns) == (1, 200)
    assert (batch.compute_output.count, batch.compute_output.ns) == (1, 30)


def test_the_counts_of_a_gpu_are_a_part_of_the_versions() -> None:
    records = records_of()
    statistics = records.statistics
    there = Execution(*_TIMES, gpu_uuid="GPU-1")
    good, bad = entry(1, 100, 110), entry(2, 200, 220)
    end_whole(records, Batch([good, bad], 3, "delay"), there, [bad])
    end_whole(records, Batch([entry(1, 100, 110)], 1, "single"), EXECUTION)
    # As a decoupled model's: the execution, and the end of each request.
    one = entry(2, 500, 510)
    statistics.record_execution(Batch([one], 2, "single"), there)
    statistics.record_success(one, there, 5500)
    assert statistics.gpus == {
        "GPU-1": GpuShare(
            success=2,
            inference_count=3,
            execution_count=2,
            request_ns=1900 + 5000,
            queue_ns=890 + 490,
            compute_input_ns=20,
            compute_infer_ns=400,
            compute_output_ns=60,
        )
    }
    assert (statistics.success.count, statistics.success.ns) == (3, 1900 + 1900 + 5000)
    assert (statistics.inference_count, statistics.execution_count) == (4, 3)


def test_a_failed_execution_counts_as_an_execution_but_no_inference() -> None:
    records = records_of()
    statistics = records.statistics
    members = [entry(1, 100, 110), entry(2, 200, 220)]
    end_whole(records, Batch(members, 3, "delay"), EXECUTION, members)
    message = statistics.to_proto("m", "1")
    assert (message.inference_count, message.execution_count) == (0, 1)
    stats = message.inference_stats
    assert (stats.fail.count, stats.fail.ns) == (2, 1900 + 1800)
    assert stats.success.count == stats.queue.count == stats.compute_infer.count == 0
    assert stats.success.ns == stats.queue.ns == 0
    assert [batch.batch_size for batch in message.batch_stats] == [3]


def test_a_member_may_fail_alone() -> None:
    records = records_of()
    statistics = records.statistics
    good, bad = entry(1, 100, 110), entry(2, 200, 220)
    end_whole(records, Batch([good, bad], 3, "delay"), EXECUTION, [bad])
    message = statistics.to_proto("m", "1")
    assert message.inference_count == 1
    assert (message.inference_stats.success.count, message.inference_stats.success.ns) == (1, 1900)
    assert (message.inference_stats.fail.count, message.inference_stats.fail.ns) == (1, 1800)


def test_a_request_that_expired_in_the_queue_counts_as_failed() -> None:
    statistics = ModelStatistics()
    statistics.record_failure(entry(1, 100, 110), 600, OTHER)
    message = statistics.to_proto("m", "1")
    assert (message.inference_stats.fail.count, message.inference_stats.fail.ns) == (1, 500)
    assert (message.execution_count, message.last_inference) == (0, 0)


def test_the_counts_are_consistent_with_a_cache() -> None:
    records = records_of()
    statistics = records.statistics
    end_whole(records, Batch([entry(1, 100, 110)], 1, "single"), EXECUTION)
    statistics.record_cache_miss(5, 2)
    statistics.record_cache_hit(entry(1, 3000, 0), 3020)
    message = statistics.to_proto("m", "1")
    stats = message.inference_stats
    assert (stats.success.count, stats.success.ns) == (2, 1900 + 2 + 20)
    assert stats.queue.count == stats.success.count
    assert stats.compute_infer.count == stats.success.count - stats.cache_hit.count
    assert (stats.cache_hit.count, stats.cache_hit.ns) == (1, 20)
    assert (stats.cache_miss.count, stats.cache_miss.ns) == (1, 7)
    assert (message.inference_count, message.execution_count) == (1, 1)


def test_batch_sizes_are_sorted_and_the_last_inference_never_goes_back() -> None:
    records = records_of()
    statistics = records.statistics
    for size, epoch_ms in ((4, 20), (1, 10), (4, 15)):
        execution = Execution(0, 0, epoch_ms, 1, 1, 1)
        end_whole(records, Batch([entry(size, 0, 0)], size, "full"), execution)
    message = statistics.to_proto("m", "1")
    assert [(b.batch_size, b.compute_infer.count) for b in message.batch_stats] == [(1, 1), (4, 2)]
    assert message.last_inference == 20


def test_a_model_that_never_ran_has_zeros() -> None:
    stats = ModelStatistics().to_proto("m", "1").inference_stats
    for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
        assert stats.HasField(name)
    assert stats.HasField("cache_hit")
    assert stats.HasField("cache_miss")


def test_responses_count_by_their_index_in_the_request() -> None:
    statistics = ModelStatistics()
    statistics.record_response(0, InferResponse(1, b"head", more=True), 10)
    statistics.record_response(1, InferResponse(1, error=ErrorStatus(13, "no"), more=True), 20)
    statistics.record_response(2, InferResponse(1), 30)
    statistics.record_response(0, InferResponse(2, b"head"), 5)
    counts = statistics.to_proto("m", "1").response_stats
    assert sorted(counts) == ["0", "1", "2"]
    assert (counts["0"].success.count, counts["0"].success.ns) == (2, 15)
    assert (counts["0"].compute_infer.count, counts["0"].compute_output.count) == (2, 2)
    assert (counts["1"].fail.count, counts["1"].fail.ns) == (1, 20)
    assert (counts["2"].empty_response.count, counts["2"].empty_response.ns) == (1, 30)
    assert all(each.HasField("cancel") for each in counts.values())


def test_responses_beyond_a_limit_are_not_counted() -> None:
    statistics = ModelStatistics()
    for index in range(MAX_RESPONSES + 5):
        statistics.record_response(index, InferResponse(1, b"head", more=True), 1)
    assert len(statistics.to_proto("m", "1").response_stats) == MAX_RESPONSES


def test_whatever_counts_makes_progress() -> None:
    one = entry(1, 100, 110)
    recorded: list[Callable[[ModelStatistics], object]] = [
        lambda it: it.record_execution(Batch([one], 1, "full"), EXECUTION),
        lambda it: it.record_success(one, EXECUTION, 5100),
        lambda it: it.record_response(0, InferResponse(1, b"head", more=True), 10),
        lambda it: it.record_response(1, InferResponse(1), 10),
        lambda it: it.record_response(1, InferResponse(1, error=ErrorStatus(13, "no")), 10),
        lambda it: it.record_failure(one, 600, OTHER),
        lambda it: it.record_cache_hit(one, 600),
        lambda it: it.record_cache_miss(5, 2),
    ]
    statistics = ModelStatistics()
    for record in recorded:
        before = statistics.progress
        record(statistics)
        assert statistics.progress > before


def test_a_request_with_many_responses_counts_when_it_has_ended() -> None:
    statistics = ModelStatistics()
    one = entry(2, 100, 110)
    statistics.record_execution(Batch([one], 2, "single"), EXECUTION)
    assert statistics.inference_count == 0
    statistics.record_success(one, EXECUTION, 5100)
    message = statistics.to_proto("m", "1")
    assert (message.inference_count, message.execution_count) == (2, 1)
    stats = message.inference_stats
    assert (stats.success.count, stats.success.ns) == (1, 5000)
    assert (stats.queue.count, stats.queue.ns) == (1, 890)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (1, 200)


def test_the_first_execution_is_kept() -> None:
    records = records_of()
    for size, infer_ns in ((1, 700), (1, 200), (2, 900)):
        execution = Execution(*_TIMES[:4], infer_ns, 30)
        end_whole(records, Batch([entry(size, 100, 110)], size, "single"), execution)
    assert records.statistics.first_execution_ns == 740


def test_padding_counts_for_requests_that_were_executed() -> None:
    statistics = ModelStatistics()
    padded = entry(1, 100, 110)
    padded.valid = replace(padded.valid, elements=3, padded_elements=16)
    for one in (padded, padded, entry(1, 100, 110)):
        statistics.record_success(one, EXECUTION, 5000)
    assert (statistics.input_elements, statistics.padding_elements) == (32, 26)
