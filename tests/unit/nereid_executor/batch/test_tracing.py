"""The spans of a batch's sampled members."""

from time import perf_counter_ns

from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.tracing import record, sampled
from tests.support.peers.spans import RecordedSpans

ONE = b"\0" + bytes(range(1, 25)) + b"\1"
OTHER = b"\0" + bytes(range(2, 26)) + b"\1"


def test_only_the_sampled_count() -> None:
    contexts = (ONE, b"", ONE[:25] + b"\0", OTHER)
    requests = [request_of(pb.BatchMember(trace_context=each)) for each in contexts]
    assert sampled(requests) == [ONE, OTHER]


def test_each_sampled_member_has_spans_of_the_whole_batch() -> None:
    tracer = RecordedSpans()
    start = perf_counter_ns()
    times = (start, start + 10, start + 30, start + 60)
    record(tracer, "m_0", [ONE, OTHER], times, "it broke")
    computes = tracer.named("compute")
    assert [span.parent for span in computes] == [ONE, OTHER]
    for compute in computes:
        assert compute.error == "it broke"
        assert compute.attributes == {"nereid.instance": "m_0"}
        assert compute.context[1:17] == compute.parent[1:17]
        parts = [span for span in tracer.spans if span.parent == compute.context]
        assert [(span.name, span.end_ns - span.start_ns) for span in parts] == [
            ("compute input", 10),
            ("compute infer", 20),
            ("compute output", 30),
        ]
        assert parts[0].start_ns == compute.start_ns
        assert parts[-1].end_ns == compute.end_ns
