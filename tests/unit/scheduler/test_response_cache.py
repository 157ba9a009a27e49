"""A model version with a cache: who runs, who waits, who is told what."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nereid.errors import Unavailable
from nereid.messages import Answer, InferRequest, Payload, SharedMemory
from nereid.pb import nereid_pb2 as pb
from nereid.slab import Segments
from services.scheduler.cache_client import CacheClient
from services.scheduler.entry import Entry
from services.scheduler.instance import Instance
from services.scheduler.load_rules import QueueLimits
from services.scheduler.model import ModelVersion
from services.scheduler.response_cache import ResponseCache, place_of
from services.scheduler.tracing import SpanTraces
from tests.unit.scheduler.cache_site import FakeLink
from tests.unit.scheduler.executors import Stream
from tests.unit.scheduler.samples import head_of, model_of
from tests.unit.spans import KeptSpans

CONFIG = """
max_batch_size: 64
dynamic_batching { }
input { name: "I" data_type: TYPE_UINT8 dims: -1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
ORDERED = CONFIG.replace("{ }", "{ preserve_ordering: true }")
LIMIT_S = 20
REVISION = b"r" * 16


class World:
    """One instance of REVISION; its batches wait for execute()."""

    def __init__(
        self, *, max_queue_size: int = 0, timeout_s: float = LIMIT_S, config: str = CONFIG
    ) -> None:
        self.link = FakeLink()
        self.tracer = KeptSpans()
        limits = QueueLimits(max_queue_size=max_queue_size)
        self.model = ModelVersion(model_of(config), 1, limits, SpanTraces(self.tracer))
        self.client = CacheClient(self.link, timeout_s)
        self.cache = ResponseCache(self.model, self.client, max_queue_size)
        self.cache.revise(place_of("m", 1, REVISION))
        self.model.cache = self.cache
        self.stream = Stream()
        self.instance = Instance(1, "i", "executor", self.stream, revision=REVISION)
        self.model.add_instance(self.instance)
        self.answers: dict[int, Answer] = {}
        self._executed = 0

    def submit(
        self,
        number: int,
        digest: bytes = b"d" * 16,
        deadline: float | None = None,
        priority: int = 0,
        trace_context: bytes = b"",
        caller: int = 0,
    ) -> Entry:
        head = head_of([("I", "UINT8", [1, 1])])
        request = InferRequest(
            number, head, [digest[:1] or b"x"], digest=digest, deadline=deadline, priority=priority
        )
        request.trace_context = trace_context
        request.caller = caller
        return self.model.submit(request, self._take)

    def submit_large(self, number: int, payload: Payload, **fields: Any) -> Entry:
        size = payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)
        head = head_of([("I", "UINT8", [1, size])])
        return self.model.submit(InferRequest(number, head, [payload], **fields), self._take)

    def _take(self, answer: Answer) -> None:
        assert answer.id not in self.answers
        self.answers[answer.id] = answer

    async def execute(self, error: str = "") -> int:
        """Answer the batch under way; how many requests it had."""
        await turn()
        batch = self.stream.sent[self._executed]
        self._executed += 1
        reply = pb.Executed(id=batch.id)
        for member in batch.members:
            answer = reply.answers.add()
            if error:
                answer.error.code = 13
                answer.error.message = error
            else:
                answer.head = b"head"
                answer.payloads.add(inline=member.payloads[0].inline)
        self.model.executed(self.instance, reply.SerializeToString())
        await turn()
        return len(batch.members)

    def texts(self) -> dict[int, str]:
        return {n: each.error.message if each.error else "" for n, each in self.answers.items()}

    def counts(self) -> tuple[int, int, int, int, int]:
        """Executions, inferences, successes, hits, misses."""
        stats = self.model.statistics
        return (
            stats.execution_count,
            stats.inference_count,
            stats.success.count,
            stats.cache_hit.count,
            stats.cache_miss.count,
        )

    async def end(self) -> None:
        await asyncio.wait_for(self.model.idle(), LIMIT_S)
        assert len(self.cache._flights) == 0
        assert self.cache._waiting == 0
        self.client.close()
        self.model.close()


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_many_alike_at_once_run_once() -> None:
    it = World()
    for number in range(64):
        it.submit(number)
    assert len(it.link.lookups()) == 1
    it.link.tell(None)
    assert await it.execute() == 1
    assert {n: (a.head, a.payloads) for n, a in it.answers.items()} == {
        n: (b"head", [b"d"]) for n in range(64)
    }
    assert it.counts() == (1, 1, 64, 63, 1)
    (kept,) = it.link.stores()
    assert kept.key == it.link.lookups()[0].key
    # What was kept answers the next one, which counts as a hit alone.
    it.submit(64)
    it.link.tell(kept.value)
    assert it.answers[64].payloads == [b"d"]
    assert it.counts() == (1, 1, 65, 64, 1)
    await it.end()


async def test_those_unlike_share_nothing() -> None:
    it = World()
    it.submit(1, b"a" * 16)
    it.submit(2, b"b" * 16)
    assert len({each.key for each in it.link.lookups()}) == 2
    it.link.tell(None)
    assert await it.execute() == 2
    assert [it.answers[n].payloads for n in (1, 2)] == [[b"a"], [b"b"]]
    await it.end()


async def test_what_comes_without_a_digest_gets_one_if_its_data_can_be_read() -> None:
    it = World()
    digested = it.submit(1, b"").request
    assert len(digested.digest) == 16
    lost = InferRequest(2, digested.head, [SharedMemory("0.0.0", 0, 1)])
    it.model.submit(lost, it._take)
    assert len(it.link.lookups()) == 1
    it.link.tell(None)
    assert await it.execute() == 2
    assert it.counts() == (1, 2, 2, 0, 1)
    assert len(it.link.stores()) == 1
    await it.end()


async def test_a_models_request_waits_for_another_like_it_but_not_where_models_ask_models() -> None:
    it = World()
    it.submit(1)
    it.submit(2, caller=7)
    assert len(it.link.lookups()) == 1
    it.model.asks_others = True
    it.submit(3, caller=7)
    it.submit(4)
    assert len(it.link.lookups()) == 2
    it.link.tell(None)
    assert await it.execute() == 2
    assert set(it.answers) == {1, 2, 3, 4}
    assert it.counts() == (1, 2, 4, 2, 2)
    await it.end()


async def test_what_would_wait_for_ever_is_told_so_once_its_flight_is_queued() -> None:
    def refuse() -> None:
        raise Unavailable("for ever", late=True)

    it = World()
    entries = [it.submit(number, caller=number) for number in range(4)]
    for stuck in (entries[0], entries[2]):
        assert stuck.passage is not None
        stuck.passage.on_queued = refuse
    assert it.answers == {}
    it.link.tell(None)
    assert it.texts() == {0: "for ever", 2: "for ever"}
    assert await it.execute() == 2
    assert it.texts() == {0: "for ever", 1: "", 2: "for ever", 3: ""}
    await it.end()


@pytest.mark.parametrize("hit", [True, False])
async def test_each_answer_says_of_which_revision_it_is(hit: bool) -> None:
    it = World()
    if not hit:
        it.instance.revision = b"s" * 16
    entries = [it.submit(number) for number in range(2)]
    it.link.tell(pb.Answer(head=b"head").SerializeToString() if hit else None)
    if not hit:
        await it.execute()
    assert {each.revision for each in entries} == {REVISION if hit else b"s" * 16}
    assert it.link.stores() == []
    await it.end()


async def test_where_nothing_can_be_kept_nothing_is_asked_for() -> None:
    it = World()
    it.cache.revise(None)
    it.submit(1)
    assert await it.execute() == 1
    assert it.link.sent == []
    await it.end()


async def test_a_model_without_a_cache_asks_none() -> None:
    it = World()
    it.model.cache = None
    it.submit(1)
    it.submit(2)
    assert await it.execute() == 2
    assert it.link.sent == []
    assert it.counts() == (1, 2, 2, 0, 0)
    await it.end()


async def test_others_try_for_themselves_when_their_leader_fails() -> None:
    it = World()
    for number in range(3):
        it.submit(number)
    it.link.tell(None)
    assert await it.execute("no luck") == 1
    assert it.texts() == {0: "no luck"}
    assert await it.execute() == 2
    assert it.texts() == {0: "no luck", 1: "", 2: ""}
    await it.end()


async def test_all_fail_when_the_model_goes() -> None:
    it = World()
    for number in range(3):
        it.submit(number)
    it.model.fail_all(Unavailable("over"))
    assert it.texts() == dict.fromkeys(range(3), "over")
    it.link.tell(None)
    await it.end()


@pytest.mark.parametrize("when", ["looking", "queued", "executing"])
async def test_a_cancelled_leader_takes_nobody_along(when: str) -> None:
    it = World()
    leader = it.submit(0)
    it.submit(1)
    it.submit(2)
    if when != "looking":
        it.link.tell(None)
    if when == "executing":
        await turn()
        assert len(it.stream.sent) == 1
    it.model.cancel(leader)
    if when == "looking":
        assert it.model.statistics.fail.count == 1
        it.link.tell(None)
    if when == "executing":
        await it.execute()
        assert it.answers == {}
    assert await it.execute() == 1
    assert it.texts() == {1: "", 2: ""}
    await it.end()


async def test_a_cancelled_follower_is_not_told() -> None:
    it = World()
    it.submit(0)
    follower = it.submit(1)
    it.link.tell(None)
    it.model.cancel(follower)
    it.model.cancel(follower)
    await it.execute()
    assert it.texts() == {0: ""}
    assert it.model.statistics.fail.count == 1
    await it.end()


async def test_a_deadline_holds_while_the_cache_is_asked_and_a_leader_runs() -> None:
    it = World()
    soon = asyncio.get_running_loop().time() + 0.02
    it.submit(0, deadline=soon)
    it.submit(1)
    await asyncio.sleep(0.04)
    assert "deadline" in it.texts()[0]
    # It led; the other has its lookup now.
    it.link.tell(None)
    await turn()
    it.submit(2, deadline=asyncio.get_running_loop().time() + 0.02)
    await asyncio.sleep(0.04)
    assert set(it.answers) == {0, 2}
    await it.execute()
    assert it.texts()[1] == ""
    await it.end()


async def test_a_cache_that_is_down_or_silent_is_a_miss() -> None:
    it = World(timeout_s=0.01)
    it.submit(0)
    await asyncio.sleep(0.03)
    assert await it.execute() == 1
    it.link.up = False
    it.submit(1)
    it.submit(2)
    assert await it.execute() == 1
    assert it.texts() == {0: "", 1: "", 2: ""}
    await it.end()


@pytest.mark.parametrize("value", [b"\xff\xff", b"", pb.Answer(id=3).SerializeToString()])
async def test_what_is_no_answer_is_a_miss(value: bytes) -> None:
    it = World()
    it.submit(0)
    it.link.tell(value)
    assert await it.execute() == 1
    assert it.texts() == {0: ""}
    await it.end()


async def test_no_more_wait_than_may_be_queued() -> None:
    it = World(max_queue_size=2)
    it.submit(0)
    it.submit(1)
    with pytest.raises(Unavailable):
        it.submit(2)
    it.link.tell(None)
    await it.execute()
    assert set(it.answers) == {0, 1}
    await it.end()


async def test_what_an_instance_of_another_revision_computed_is_not_kept() -> None:
    it = World()
    it.cache.revise(place_of("m", 1, b"s" * 16))
    it.submit(0)
    it.link.tell(None)
    await it.execute()
    assert it.texts() == {0: ""}
    assert it.link.stores() == []
    await it.end()


async def test_a_revised_model_shares_nothing_with_its_past() -> None:
    it = World()
    it.submit(0)
    it.cache.revise(place_of("m", 1, b"s" * 16))
    it.submit(1)
    old, new = it.link.lookups()
    assert old.key != new.key
    it.link.tell(None)
    while len(it.answers) < 2:
        await it.execute()
    assert [each.key for each in it.link.stores()] == [old.key]
    await it.end()


async def test_a_request_that_kills_instances_is_not_tried_by_all_that_are_alike() -> None:
    it = World()
    for number in range(5):
        it.submit(number)
    it.link.tell(None)
    instance, died = it.instance, 0
    while not it.answers:
        await turn()
        it.model.lose_instance(instance, "it died")
        died += 1
        instance = Instance(1 + died, "i", "executor", Stream(), revision=REVISION)
        it.model.add_instance(instance)
    assert died == 3
    assert set(it.texts().values()) == {"it died, 3 of 3 attempts to execute the request"}
    assert set(it.answers) == set(range(5))
    await it.end()


SAMPLED = b"\0" + b"t" * 24 + b"\1"


async def test_only_a_traced_leaders_context_reaches_the_cache() -> None:
    it = World()
    it.submit(1, trace_context=SAMPLED)
    it.submit(2, trace_context=SAMPLED)
    it.submit(3, b"e" * 16, trace_context=SAMPLED[:-1] + b"\0")
    it.link.tell(None)
    assert await it.execute() == 2
    first, follower = it.tracer.named("cache lookup")
    assert (first.attributes, follower.attributes) == ({"hit": False}, {"hit": True})
    assert [each.trace_context for each in it.link.lookups()] == [first.context, b""]
    assert [each.trace_context for each in it.link.stores()] == [first.context, b""]
    assert {span.parent for span in it.tracer.named("m")} == {SAMPLED}
    await it.end()


@pytest.mark.parametrize("end", ["cancelled", "down", "closed"])
async def test_a_lookup_that_is_not_answered_has_its_span(end: str) -> None:
    it = World()
    it.link.up = end != "down"
    entry = it.submit(1, trace_context=SAMPLED)
    if end == "cancelled":
        it.model.cancel(entry)
    elif end == "closed":
        it.client.close()
    if end != "cancelled":
        assert await it.execute() == 1
    span = it.tracer.one("cache lookup")
    assert span.attributes == {"hit": False}
    assert span.parent == it.tracer.one("m").context
    assert all(each.trace_context == span.context for each in it.link.lookups())
    await it.end()


# What a thread digests.
LARGE = b"d" * ((1 << 20) + 1)


@contextlib.contextmanager
def digests_held(it: World) -> Iterator[None]:
    """No digest is made in a thread until the block ends."""
    gate = threading.Event()
    held = [it.client.threads.submit(gate.wait, LIMIT_S) for _ in range(2)]
    try:
        yield
    finally:
        gate.set()
    assert all(each.result() for each in held)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.001)


async def test_others_are_answered_while_a_large_request_is_digested() -> None:
    it = World()
    with digests_held(it):
        large = it.submit_large(1, LARGE).request
        it.submit(2)
        it.link.tell(None)
        assert await it.execute() == 1
        assert set(it.answers) == {2}
        assert large.digest == b""
    await until(lambda: len(it.link.lookups()) == 2)
    it.link.tell(None)
    assert await it.execute() == 1
    assert it.answers[1].payloads == [LARGE]
    # The digest alone finds it again.
    it.submit_large(3, LARGE, digest=large.digest)
    it.link.tell(it.link.stores()[1].value)
    assert it.answers[3].payloads == [LARGE]
    await it.end()


async def test_large_requests_that_are_alike_run_once() -> None:
    it = World()
    entries = [it.submit_large(number, LARGE) for number in range(5)]
    await until(lambda: len({each.passage and each.passage.flight for each in entries}) == 1)
    assert len(it.link.lookups()) == 1
    it.link.tell(None)
    assert await it.execute() == 1
    assert {n: answer.head for n, answer in it.answers.items()} == dict.fromkeys(range(5), b"head")
    assert it.counts() == (1, 1, 5, 4, 1)
    await it.end()


async def test_answers_keep_their_order_however_long_a_digest_takes() -> None:
    it = World(config=ORDERED)
    with digests_held(it):
        it.submit_large(1, LARGE)
        it.submit_large(2, b"d")
        it.link.tell(None)
        assert await it.execute() == 1
        assert it.answers == {}
    await until(lambda: len(it.link.lookups()) == 2)
    it.link.tell(None)
    assert await it.execute() == 1
    assert list(it.answers) == [1, 2]
    await it.end()


@pytest.mark.parametrize("end", ["cancelled", "deadline", "model gone"])
async def test_a_large_request_that_ends_before_it_is_digested_ends_once(end: str) -> None:
    it = World()
    with digests_held(it):
        soon = asyncio.get_running_loop().time() + 0.02
        entry = it.submit_large(1, LARGE, deadline=soon if end == "deadline" else None)
        if end == "cancelled":
            it.model.cancel(entry)
        elif end == "deadline":
            await until(lambda: it.answers)
        else:
            it.model.fail_all(Unavailable("over"))
    it.client.threads.shutdown()
    await turn()
    assert len(it.answers) == (end != "cancelled")
    assert it.model.statistics.fail.count == 1
    assert it.link.sent == []
    assert it.stream.sent == []
    await it.end()


@pytest.mark.parametrize("why", ["data gone", "not kept any more", "closed"])
async def test_a_large_request_that_gets_no_key_runs_all_the_same(why: str) -> None:
    it = World()
    segments = Segments(1 << 24)
    segment = segments.take(len(LARGE))
    assert segment is not None
    with digests_held(it):
        it.submit_large(1, segment.range(0, len(LARGE)))
        if why == "data gone":
            segments.discard(segment.name)
        elif why == "not kept any more":
            it.cache.revise(None)
        else:
            it.client.close()
    await until(lambda: it.stream.sent)
    assert await it.execute() == 1
    assert it.texts() == {1: ""}
    assert it.link.sent == []
    assert it.counts() == (1, 1, 1, 0, 0)
    await it.end()


async def test_no_more_are_digested_than_may_be_queued() -> None:
    it = World(max_queue_size=1)
    with digests_held(it):
        it.submit_large(1, LARGE)
        with pytest.raises(Unavailable):
            it.submit_large(2, LARGE)
    await until(it.link.lookups)
    it.link.tell(None)
    assert await it.execute() == 1
    await it.end()


@pytest.mark.parametrize("key", [True, False])
async def test_a_large_request_is_told_that_it_would_wait_for_ever(key: bool) -> None:
    def refuse() -> None:
        raise Unavailable("for ever", late=True)

    it = World()
    it.submit_large(1, LARGE)
    await until(it.link.lookups)
    it.link.tell(None)
    await turn()
    with digests_held(it):
        stuck = it.submit_large(2, LARGE, caller=7)
        assert stuck.passage is not None
        stuck.passage.on_queued = refuse
        if not key:
            it.cache.revise(None)
    await until(lambda: it.answers)
    assert it.texts() == {2: "for ever"}
    assert await it.execute() == 1
    await it.end()
