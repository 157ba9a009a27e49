"""What is known of a request's time as it ends."""

from __future__ import annotations

from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import InferRequest, RequestTimings
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.requests.entry import Entry, RequestState, ValidHead
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.core.requests.request_timings import (
    combined,
    queue_delay_ns,
    timings_of,
)
from tests.support.scheduler.samples import NoOwner, model_of, no_response
from tests.support.scheduler.world import VersionWorld, batches

NOW = 10_000
DELAY = 500


def entry(state: RequestState = RequestState.EXECUTING, **fields: Any) -> Entry:
    valid = ValidHead(batch_size=1, shape_key=(), sizes=(), input_names=())
    times = {"received_ns": 1000, "enqueued_ns": 1200}
    request = InferRequest(1, b"", [])
    return Entry(request, valid, no_response, NoOwner(), state=state, **times | fields)


def execution(idle_since_ns: int = 0) -> Execution:
    return Execution(2000, 9000, 0, 10, 20, 30, b"", "", "i_0", 4, idle_since_ns)


@pytest.mark.parametrize(
    ("delay_ns", "idle_since_ns", "expected"),
    [
        # The model has no delay: whatever it waited for, it was not that.
        (0, 0, [("queue", 800)]),
        # Free before the request came, and for longer than a batch may wait.
        (DELAY, 0, [("queue", 300), ("batch-wait", 500)]),
        # Free only later.
        (DELAY, 1900, [("queue", 700), ("batch-wait", 100)]),
        # Never: it took the batch as it ended another.
        (DELAY, 2000, [("queue", 800), ("batch-wait", 0)]),
        (DELAY, 2500, [("queue", 800), ("batch-wait", 0)]),
    ],
)
def test_a_batchs_wait_is_not_the_queues(
    delay_ns: int, idle_since_ns: int, expected: list[tuple[str, int]]
) -> None:
    executed = entry(execution=execution(idle_since_ns))
    phases = (*expected, ("input", 10), ("inference", 20), ("output", 30))
    assert timings_of(executed, delay_ns, NOW, failed=False) == RequestTimings(phases, 4, "i_0", 1)


def test_attempts_count_lost_ones() -> None:
    assert timings_of(entry(execution=execution(), retries=2), 0, NOW, failed=False).attempt == 3


@pytest.mark.parametrize("failed", [False, True])
def test_a_lookup_that_ends_a_request_is_all_of_it(failed: bool) -> None:
    found = entry(RequestState.CACHE_LOOKUP)
    expected = RequestTimings((("cache", 9000),), cached=not failed)
    assert timings_of(found, 0, NOW, failed=failed) == expected


def test_a_lookup_before_the_queue_is_a_part() -> None:
    lookup: Any = object()
    missed = entry(execution=execution(), cache_lookup=lookup)
    phases = timings_of(missed, 0, NOW, failed=False).phases
    assert phases[:2] == (("cache", 200), ("queue", 800))


def test_failures_say_what_is_known() -> None:
    queued = timings_of(entry(RequestState.QUEUED), DELAY, NOW, failed=True)
    assert queued == RequestTimings((("queue", 8800),))
    # Its instance was lost; since when it had the request is not known here.
    lost = timings_of(entry(retries=3), DELAY, NOW, failed=True)
    assert lost == RequestTimings(attempt=4)


def test_no_part_is_negative() -> None:
    """An execution may be that of an earlier iteration."""
    phases = dict(
        timings_of(entry(execution=execution(), enqueued_ns=5000), 0, NOW, failed=False).phases
    )
    assert phases["queue"] == 0


def test_what_happens_one_after_the_other_is_added_up() -> None:
    first = RequestTimings((("queue", 1), ("inference", 2)), 4, "i_0", 2)
    then = RequestTimings((("cache", 5), ("queue", 10)), 1, "j_0", 1)
    phases = (("cache", 5), ("queue", 11), ("inference", 2))
    assert combined(combined(None, first), then) == RequestTimings(phases, attempt=2)


@pytest.mark.parametrize(
    ("text", "delay_ns"),
    [
        ("", 0),
        ("max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 7 }", 7000),
        ("sequence_batching { oldest { max_queue_delay_microseconds: 8 } }", 8000),
        ("sequence_batching { direct { max_queue_delay_microseconds: 9 } }", 9000),
    ],
)
def test_a_models_delay_is_its_batchers(text: str, delay_ns: int) -> None:
    assert queue_delay_ns(model_of(text)) == delay_ns


async def test_only_requests_that_want_timings_have_them() -> None:
    world = VersionWorld()
    instance, stream = world.instance("i_7")
    world.receive(1, wants_timings=True)
    world.submit(2)
    for number in (1, 2):
        assert batches(stream) == [[each] for each in range(1, number + 1)]
        reply = pb.Executed(id=number, compute_infer_ns=5)
        reply.responses.add(head=b"head")
        world.model.pool.on_reply(instance, reply.SerializeToString())
    timed, other = world.responses
    assert other.timings is None
    assert timed.timings is not None
    assert timed.timings[1:] == (1, "i_7", 1, False)
    assert [name for name, _ in timed.timings.phases] == ["queue", "input", "inference", "output"]
    assert ("inference", 5) in timed.timings.phases


async def test_a_request_that_fails_in_the_queue_has_its_wait() -> None:
    world = VersionWorld()
    world.submit(1, wants_timings=True)
    world.model.fail_all(Unavailable("it ends"))
    (failed,) = world.responses
    assert failed.timings is not None
    assert [name for name, _ in failed.timings.phases] == ["queue"]
    assert not failed.timings.attempt
