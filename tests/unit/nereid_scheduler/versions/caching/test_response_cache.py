"""A model version with a response cache: hits, misses and single flight."""

from collections.abc import AsyncIterator

import pytest

from nereid.core.errors import Unavailable
from nereid.core.tensors.digest import DIGEST_BYTES
from nereid.core.wire.cache_messages import CacheUsage
from nereid.core.wire.messages import InferRequest, InferResponse, MovedResponse
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from tests.support.scheduler.cached_model import REVISION, CachedModel, turn
from tests.support.scheduler.samples import head_of
from tests.support.scheduler.world import Stream
from tests.support.waiting import until

# What caches kept before they had a format of their own: here it names memory of another process.
REFERENCE = pb.InferResponse(
    head=b"head", payloads=[{"shared_memory": {"segment_name": "1.2.3", "size_bytes": 4}}]
)


@pytest.fixture
async def it() -> AsyncIterator[CachedModel]:
    made = CachedModel()
    yield made
    await made.end()


async def test_identical_requests_at_once_run_once(it: CachedModel) -> None:
    for number in range(64):
        it.submit(number)
    assert len(it.link.lookups()) == 1
    it.link.send_results(None)
    assert await it.execute() == 1
    assert {n: (a.head, a.payloads) for n, a in it.responses.items()} == {
        n: (b"head", [b"d"]) for n in range(64)
    }
    assert it.counts() == (1, 1, 64, 63, 1)
    (stored,) = it.link.stores()
    assert stored.key == it.link.lookups()[0].key
    # The next request gets the stored response, and counts as a hit only.
    it.submit(64)
    it.link.send_results(stored.value)
    assert it.responses[64].payloads == [b"d"]
    assert it.counts() == (1, 1, 65, 64, 1)


async def test_a_request_without_a_digest_gets_one_if_its_data_can_be_read(it: CachedModel) -> None:
    digested = it.submit(1, b"").request
    assert len(digested.digest) == DIGEST_BYTES
    lost = InferRequest(2, digested.head, [SharedMemory("0.0.0", 0, 1)])
    it.model.submit(lost, it.keep_response)
    assert len(it.link.lookups()) == 1
    it.link.send_results(None)
    assert await it.execute() == 2
    assert it.counts() == (1, 2, 2, 0, 1)
    assert len(it.link.stores()) == 1


async def test_a_models_request_follows_an_identical_one_but_not_where_models_ask_models(
    it: CachedModel,
) -> None:
    it.submit(1)
    it.submit(2, caller=7)
    assert len(it.link.lookups()) == 1
    it.model.calls_other_models = True
    it.submit(3, caller=7)
    it.submit(4)
    assert len(it.link.lookups()) == 2
    it.link.send_results(None)
    assert await it.execute() == 2
    assert set(it.responses) == {1, 2, 3, 4}
    assert it.counts() == (1, 2, 4, 2, 2)


async def test_a_deadlock_is_detected_once_the_flight_is_queued(it: CachedModel) -> None:
    def refuse() -> None:
        raise Unavailable("for ever", accepted=True)

    entries = [it.submit(number, caller=number) for number in range(4)]
    for stuck in (entries[0], entries[2]):
        assert stuck.cache_lookup is not None
        stuck.cache_lookup.on_queued = refuse
    assert it.responses == {}
    it.link.send_results(None)
    assert it.texts() == {0: "for ever", 2: "for ever"}
    assert await it.execute() == 2
    assert it.texts() == {0: "for ever", 1: "", 2: "for ever", 3: ""}


@pytest.mark.parametrize("hit", [True, False])
async def test_each_entry_has_the_revision_of_its_response(it: CachedModel, hit: bool) -> None:
    if not hit:
        it.instance.revision = b"s" * 16
    entries = [it.submit(number) for number in range(2)]
    if hit:
        it.link.send_sealed(pb.CachedResponse(head=b"head").SerializeToString())
    else:
        it.link.send_results(None)
        await it.execute()
    assert {each.revision for each in entries} == {REVISION if hit else b"s" * 16}
    assert it.link.stores() == []


async def test_without_a_revision_nothing_is_looked_up(it: CachedModel) -> None:
    it.cache.set_revision(1, None)
    it.submit(1)
    assert await it.execute() == 1
    assert it.link.sent == []


async def test_a_model_without_a_cache_looks_nothing_up(it: CachedModel) -> None:
    it.model.cache = None
    it.submit(1)
    it.submit(2)
    assert await it.execute() == 2
    assert it.link.sent == []
    assert it.counts() == (1, 2, 2, 0, 0)


@pytest.mark.parametrize("value", [b"\xff\xff", b"", REFERENCE.SerializeToString()])
async def test_a_value_that_is_no_response_is_a_miss(it: CachedModel, value: bytes) -> None:
    it.submit(0)
    it.link.send_sealed(value)
    assert await it.execute() == 1
    assert it.texts() == {0: ""}


async def test_no_more_wait_than_may_be_queued() -> None:
    it = CachedModel(max_queue_size=2)
    it.submit(0)
    it.submit(1)
    with pytest.raises(Unavailable):
        it.submit(2)
    it.link.send_results(None)
    await it.execute()
    assert set(it.responses) == {0, 1}
    await it.end()


async def test_a_response_of_another_revision_is_not_stored(it: CachedModel) -> None:
    it.cache.set_revision(1, b"s" * 16)
    it.submit(0)
    it.link.send_results(None)
    await it.execute()
    assert it.texts() == {0: ""}
    assert it.link.stores() == []


async def test_followers_of_a_request_that_crashes_instances_fail_with_it(it: CachedModel) -> None:
    for number in range(5):
        it.submit(number)
    it.link.send_results(None)
    instance, died = it.instance, 0
    while not it.responses:
        await turn()
        it.model.pool.lose_instance(instance, "it died")
        died += 1
        instance = RemoteInstance(1 + died, "i", "executor", Stream(), revision=REVISION)
        it.model.pool.roster.add(instance)
    assert died == 3
    assert set(it.texts().values()) == {"it died, 3 of 3 attempts to execute the request"}
    assert set(it.responses) == set(range(5))


SAMPLED = b"\0" + b"t" * 24 + b"\1"


async def test_only_a_traced_leaders_context_reaches_the_cache(it: CachedModel) -> None:
    it.submit(1, trace_context=SAMPLED)
    it.submit(2, trace_context=SAMPLED)
    it.submit(3, b"e" * DIGEST_BYTES, trace_context=SAMPLED[:-1] + b"\0")
    it.link.send_results(None)
    assert await it.execute() == 2
    first, follower = it.tracer.named("cache lookup")
    assert (first.attributes, follower.attributes) == (
        {"nereid.cache.hit": False},
        {"nereid.cache.hit": True},
    )
    assert [each.trace_context for each in it.link.lookups()] == [first.context, b""]
    assert [each.trace_context for each in it.link.stores()] == [first.context, b""]
    assert {span.parent for span in it.tracer.named("m")} == {SAMPLED}


@pytest.mark.parametrize("end", ["cancelled", "down", "closed"])
async def test_a_lookup_without_a_result_has_its_span(it: CachedModel, end: str) -> None:
    it.link.up = end != "down"
    entry = it.submit(1, trace_context=SAMPLED)
    if end == "cancelled":
        it.model.cancel(entry)
    elif end == "closed":
        it.client.close()
    if end != "cancelled":
        assert await it.execute() == 1
    span = it.tracer.one("cache lookup")
    assert span.attributes == {"nereid.cache.hit": False}
    assert span.parent == it.tracer.one("m").context
    assert all(each.trace_context == span.context for each in it.link.lookups())


async def test_a_full_cache_is_sent_what_misses_twice(it: CachedModel) -> None:
    it.link.on_items([CacheUsage(capacity_bytes=1000, used_bytes=1000)])
    for number in range(2):
        it.submit(number)
        it.link.send_results(None)
        await it.execute()
        assert len(it.link.stores()) == number
    assert it.client.failures == 0


async def test_a_response_too_large_to_store_is_left_in_its_segment() -> None:
    segments = SegmentPool(1 << 20)
    segment = segments.acquire_segment(101)
    assert segment is not None
    segment.view[:101] = whole = bytes(range(101))
    small, large = segment.range(0, 50), segment.range(0, 101)
    it = CachedModel(max_unsent_bytes=100)
    # One that is stored, or shared with followers, is copied.
    for number, payload in ((1, small), (2, large), (3, large)):
        it.submit_large(number, payload, digest=bytes([payload.size_bytes]) * DIGEST_BYTES)
    it.link.send_results(None)
    assert await it.execute() == 1
    assert await it.execute() == 1
    assert [it.responses[n].payloads for n in (1, 2, 3)] == [[whole[:50]], [whole], [whole]]
    assert (len(it.link.stores()), it.client.failures) == (1, 1)
    # This one is not; a request that comes the moment it is sent runs by itself.
    one, other = (
        InferRequest(
            number, head_of([("I", "UINT8", [1, 101])]), [large], digest=b"x" * DIGEST_BYTES
        )
        for number in (4, 5)
    )

    def submit_other(response: InferResponse) -> None:
        it.responses[response.id] = response
        it.model.submit(other, it.keep_response)

    it.model.submit(one, submit_other)
    for _ in range(2):
        it.link.send_results(None)
        assert await it.execute() == 1
    sent = [(it.responses[n].payloads, it.responses[n].segment_name) for n in (4, 5)]
    assert sent == [([large], segment.name)] * 2
    assert (len(it.link.stores()), it.client.failures) == (1, 3)
    await it.end()


@pytest.mark.parametrize("when", ["looking", "queued", "executing"])
async def test_requests_that_wait_for_the_same_response_are_returned_one_by_one(
    it: CachedModel, when: str
) -> None:
    for number in range(3):
        it.submit(number)
    if when != "looking":
        it.link.send_results(None)
    if when == "executing":
        await turn()
        assert len(it.stream.sent) == 1
    it.model.return_queued()
    moved = {number for number, each in it.responses.items() if isinstance(each, MovedResponse)}
    assert moved == ({1, 2} if when == "executing" else {0, 1, 2})
    if when == "executing":
        await it.execute()
        assert it.responses[0].error is None
    else:
        it.link.send_results(None)
        await turn()
        assert it.stream.sent == []


async def test_a_cache_that_is_down_or_silent_is_a_miss() -> None:
    it = CachedModel(timeout_s=0.01)
    it.submit(0)
    await until(lambda: it.stream.sent)
    assert await it.execute() == 1
    it.link.up = False
    it.submit(1)
    assert await it.execute() == 1
    assert it.texts() == {0: "", 1: ""}
    await it.end()
