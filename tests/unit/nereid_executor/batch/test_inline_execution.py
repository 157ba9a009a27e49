"""Which requests the event loop executes itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_runner import BatchRunner
from nereid_executor.batch.batch_serving import serve_batches
from nereid_executor.batch.inline_execution import InlineExecution, InlineRule
from tests.support.executor.doubler import Doubler
from tests.support.executor.frames import Frames
from tests.support.executor.instances import instance
from tests.support.models.onnx_models import head, identity_config, member, response_of

US, MS, S = 1000, 1_000_000, 1_000_000_000
LIMIT = 300 * US


def measured(
    elapsed_ns: int, size_bytes: int = 1000, *, times: int = 8, now: int = 0
) -> InlineRule:
    rule = InlineRule(LIMIT)
    for _ in range(times):
        rule.record(size_bytes, elapsed_ns, now)
    return rule


@pytest.mark.parametrize(
    ("elapsed_ns", "times", "allowed"),
    [(100 * US, 8, True), (100 * US, 7, False), (LIMIT, 20, True), (LIMIT + US, 20, False)],
    ids=["small", "too few", "at the limit", "slow"],
)
def test_it_must_be_known_to_be_small(elapsed_ns: int, times: int, *, allowed: bool) -> None:
    assert measured(elapsed_ns, times=times).allows(1000, 0) is allowed


def test_nothing_is_allowed_before_anything_was_measured() -> None:
    assert not InlineRule(LIMIT).allows(0, 0)


@pytest.mark.parametrize(
    ("measured_bytes", "size", "allowed"),
    [(1000, 512, True), (1000, 1023, True), (1000, 511, False), (1000, 1024, False)],
    ids=["smallest of its class", "largest of its class", "smaller", "larger"],
)
def test_each_class_of_sizes_is_measured_for_itself(
    measured_bytes: int, size: int, *, allowed: bool
) -> None:
    assert measured(10 * US, measured_bytes).allows(size, 0) is allowed


def test_the_largest_are_for_the_thread_however_short() -> None:
    assert measured(10 * US, 65_536).allows(65_536, 0)
    assert not measured(10 * US, 65_537).allows(65_537, 0)


def test_what_was_measured_long_ago_does_not_count() -> None:
    rule = measured(10 * US, now=5 * S)
    assert rule.allows(1000, 65 * S)
    assert not rule.allows(1000, 65 * S + 1)
    rule.record(1000, 10 * US, 70 * S)
    assert rule.allows(1000, 71 * S)


def test_an_outlier_counts_a_little_and_a_trend_in_full() -> None:
    rule = measured(100 * US)
    rule.record(1000, 50 * MS, 0)
    assert rule.allows(1000, 0)
    for _ in range(20):
        rule.record(1000, 50 * MS, 0)
    assert not rule.allows(1000, 0)
    for _ in range(100):
        rule.record(1000, 100 * US, 0)
    assert rule.allows(1000, 0)


def test_one_that_stalled_the_loop_bars_the_model_for_a_while() -> None:
    rule = measured(100 * US)
    rule.record_inline(1000, 4 * LIMIT, S)
    assert rule.allows(1000, S)
    rule.record_inline(1000, 10 * MS, S)
    assert not rule.allows(1000, S + 200 * MS - 1)
    assert rule.allows(1000, S + 200 * MS)


# ---- on a runner


@dataclass
class Site:
    """A doubler that is executed in either place."""

    model: Doubler = field(default_factory=Doubler)

    def __post_init__(self) -> None:
        self.runner = BatchRunner(instance(identity_config("FP32", "1")), self.model)
        # So long that no machine is too slow.
        self.execution = InlineExecution(self.runner, InlineRule(100 * S))

    def warm_up(self, *members: pb.BatchMember) -> None:
        """In the thread."""
        stream = Frames(*(batch(*members) for _ in range(8)))
        serve_batches(stream, self.runner, lambda: False, self.execution.rule)
        assert len(stream.sent) == 8


def request(value: float) -> pb.BatchMember:
    return member(head(("x", "FP32", [1, 1])), np.full(1, value, np.float32).tobytes())


_numbers = count(1)


def batch(*members: pb.BatchMember, number: int = 0) -> bytes:
    return pb.Batch(id=number or next(_numbers), members=members).SerializeToString()


def test_the_loop_executes_lone_requests_once_the_thread_has_shown_that_they_are_small() -> None:
    site = Site()
    assert site.execution.execute(batch(request(1))) is None
    site.warm_up(request(1))
    frame = site.execution.execute(batch(request(3), number=1 << 20))
    assert frame is not None
    executed = pb.Executed.FromString(frame)
    assert executed.id == 1 << 20
    (response,) = executed.responses
    assert response_of(response)[0][-1] == np.float32(6).tobytes()
    assert len(site.model.batches) == 9
    assert site.runner.received.completed == 9


def test_errors_of_the_model_are_responses() -> None:
    site = Site()
    site.warm_up(request(1))
    site.model.failure = Unavailable("out of order")
    frame = site.execution.execute(batch(request(1)))
    assert frame is not None
    assert pb.Executed.FromString(frame).responses[0].error.message == "out of order"


def test_tensors_in_shared_memory_are_for_the_thread() -> None:
    site = Site()
    site.warm_up(request(1))
    in_memory = request(1)
    in_memory.payloads[0].shared_memory.size_bytes = 1 << 30
    site.warm_up(request(1), request(2))
    for frame in (batch(in_memory), batch(request(1), in_memory), batch()):
        assert site.execution.execute(frame) is None
    assert len(site.model.batches) == 16
    assert site.execution.execute(batch(request(1))) is not None


def test_a_batch_of_several_is_executed_as_one() -> None:
    site = Site()
    site.warm_up(request(1), request(2))
    frame = site.execution.execute(batch(request(3), request(4)))
    assert frame is not None
    responses = pb.Executed.FromString(frame).responses
    assert [response_of(each)[0][-1] for each in responses] == [
        np.float32(6).tobytes(),
        np.float32(8).tobytes(),
    ]
    assert len(site.model.batches) == 9


def test_a_withdrawn_batch_has_no_reply_and_does_not_count() -> None:
    site = Site()
    site.warm_up(request(1))
    assert site.runner.received.withdraw(1 << 20)
    assert site.execution.execute(batch(request(1), number=1 << 20)) == b""
    assert len(site.model.batches) == 8
    assert site.runner.received.completed == 8
