"""Requests that models make: nested call depth and deadlock detection."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_batches import SentBatch
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.cache_lookup import CacheLookup
from nereid_scheduler.core.requests.entry import Batch, Entry, RequestState, ValidHead
from nereid_scheduler.core.requests.single_flight import Flight
from nereid_scheduler.placement.executors.sessions import PlacedInstance
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.version_context import VersionContext
from nereid_scheduler.versions.waits.nested_calls import MAX_DEPTH, NestedCalls
from tests.support.scheduler.samples import NoOwner, model_of

VALID = ValidHead(1, (), (), ())
DECOUPLED = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
model_transaction_policy { decoupled: true }
"""


class NoCache:
    """For lookups that never end."""

    def needs_inline(self, lookup: CacheLookup, response: InferResponse) -> bool:
        raise AssertionError(lookup, response)

    def end_entry(self, entry: Entry, response: InferResponse | None) -> None:
        raise AssertionError(entry, response)


class Model(NoOwner):
    """A version whose instances the test runs."""

    def entries_at(self, instance: RemoteInstance) -> list[Entry]:
        return [] if instance.batches.first is None else instance.batches.first.batch.entries


class World:
    """Models by name, each with so many instances."""

    def __init__(self, **models: int) -> None:
        self.placed: dict[int, PlacedInstance] = {}
        self.instances: dict[str, list[RemoteInstance]] = {}
        self.models = {name: Model() for name in models}
        for name, count in models.items():
            for _ in range(count):
                number = len(self.placed) + 1
                instance = RemoteInstance(number, name, "executor", stream=SimpleNamespace())
                served: Any = SimpleNamespace(runtime=self.models[name])
                nothing: Any = None
                self.placed[number] = PlacedInstance(instance, served, nothing, nothing)
                self.instances.setdefault(name, []).append(instance)
        self.nested_calls = NestedCalls(self.placed)

    def ask(self, model: str, caller: RemoteInstance | None = None) -> Entry:
        """A request, queued; runs until something executes it."""
        request = InferRequest(0, b"", [], caller=caller.id if caller else 0)
        entry = Entry(request, VALID, lambda _: None, self.models[model], 0)
        entry.state = RequestState.QUEUED
        if caller is not None:
            self.nested_calls.set_depth(request)
            self.nested_calls.add_call(request, entry)
        return entry

    def run(self, instance: RemoteInstance, *entries: Entry) -> None:
        for entry in entries:
            entry.state = RequestState.EXECUTING
        instance.batches.first = SentBatch(1, Batch([*entries], len(entries), "single"), 0)

    def busy(self, model: str, number: int = 0) -> RemoteInstance:
        """An instance that executes a client's request."""
        instance = self.instances[model][number]
        self.run(instance, self.ask(model))
        return instance

    def look_up(self, model: str, caller: RemoteInstance, leader: Entry | None = None) -> Entry:
        """A request that waits for the cache, or for the leader of its flight."""
        entry = self.ask(model)
        entry.cache_lookup = CacheLookup(NoCache(), b"", b"", Flight("x", leader or entry))
        entry.state = RequestState.CACHE_LOOKUP
        entry.request.caller = caller.id
        self.nested_calls.add_call(entry.request, entry)
        return entry

    def end(self, instance: RemoteInstance) -> None:
        assert instance.batches.first is not None
        for entry in instance.batches.first.batch.entries:
            entry.state = RequestState.RESPONDED
        instance.batches.first = None


def test_clients_requests_have_no_depth() -> None:
    world = World(a=1, b=1)
    (a,) = world.instances["a"]
    first = world.ask("a")
    world.run(a, first)
    assert world.ask("b", a).request.depth == 1
    assert first.request.depth == 0


def test_a_model_that_calls_itself_without_end() -> None:
    world = World(a=MAX_DEPTH + 2)
    entry = world.ask("a")
    for instance in world.instances["a"][:MAX_DEPTH]:
        world.run(instance, entry)
        entry = world.ask("a", instance)
    world.run(world.instances["a"][MAX_DEPTH], entry)
    with pytest.raises(InvalidArgument, match="without end"):
        world.ask("a", world.instances["a"][MAX_DEPTH])


def test_a_model_with_one_instance_cannot_wait_for_itself() -> None:
    world = World(a=1)
    a = world.busy("a")
    with pytest.raises(Unavailable, match="for ever"):
        world.ask("a", a)


def test_a_free_instance_can_help() -> None:
    world = World(a=2)
    one, two = world.busy("a"), world.instances["a"][1]
    entry = world.ask("a", one)
    world.run(two, entry)
    with pytest.raises(Unavailable):
        world.ask("a", two)


def test_an_instance_that_is_busy_with_other_work_will_help() -> None:
    world = World(a=2)
    one, two = world.busy("a"), world.busy("a", 1)
    world.ask("a", one)
    # Now the second waits for one of both as well.
    with pytest.raises(Unavailable):
        world.ask("a", two)


def test_a_deadlock_of_several_models() -> None:
    world = World(a=1, b=1, c=1)
    a, b, c = map(world.busy, "abc")
    world.ask("b", a)
    world.ask("c", b)
    with pytest.raises(Unavailable):
        world.ask("a", c)


def test_a_responded_request_is_not_waited_for() -> None:
    world = World(a=1, b=1)
    a, b = world.busy("a"), world.instances["b"][0]
    entry = world.ask("b", a)
    world.run(b, entry)
    world.end(b)
    world.run(b, world.ask("b"))
    # a waits for nothing: it will respond.
    world.ask("a", b)


def test_a_call_of_an_earlier_batch_is_not_waited_for() -> None:
    world = World(a=1, b=1)
    a, b = world.busy("a"), world.instances["b"][0]
    world.ask("b", a)
    world.end(a)
    world.run(a, world.ask("a"))
    world.run(b, world.ask("b"))
    world.ask("a", b)


def test_a_cache_miss_may_deadlock() -> None:
    world = World(a=1)
    a = world.busy("a")
    entry = world.look_up("a", a)
    assert entry.cache_lookup is not None
    assert entry.cache_lookup.on_queued is not None
    entry.cache_lookup.on_queued()
    entry.state = RequestState.QUEUED
    with pytest.raises(Unavailable, match="for ever"):
        entry.cache_lookup.on_queued()


@pytest.mark.parametrize("free", [False, True])
def test_following_an_identical_request_may_deadlock(free: bool) -> None:
    """b waits for what a executes, a for what b executes; c would have them wait for itself."""
    world = World(a=1, b=1 + free)
    (a,), b = world.instances["a"], world.instances["b"][0]
    first, second = world.ask("a"), world.ask("b")
    world.run(a, first)
    world.run(b, second)

    world.look_up("a", b, first)
    with pytest.raises(Unavailable, match="for ever"):
        # Another instance of b is free, but this one executes what a waits for.
        world.look_up("b", a, second)


def test_a_request_during_its_cache_lookup_blocks_no_other() -> None:
    world = World(a=1, b=1)
    a, b = world.busy("a"), world.busy("b")
    world.look_up("b", a)
    world.ask("a", b)


def test_unknown_and_idle_callers_are_ignored() -> None:
    world = World(a=1)
    (a,) = world.instances["a"]
    world.ask("a", a)
    gone = RemoteInstance(99, "x", "executor")
    world.ask("a", gone)


def test_finished_calls_are_forgotten() -> None:
    world = World(a=1, b=2)
    a = world.busy("a")
    for _ in range(1000):
        world.ask("b", a).state = RequestState.RESPONDED
    assert sum(map(len, world.nested_calls._calls.values())) < 200


async def test_a_decoupled_models_requests_count_after_its_batch_is_executed() -> None:
    world = World(a=1, b=1)
    (a,) = world.instances["a"]
    a.stream = SimpleNamespace(send=lambda *_, **_options: None)
    model = ModelVersion(model_of(DECOUPLED), 1, VersionContext())
    world.placed[a.id].served.runtime = model
    model.pool.roster.add(a)
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[1])
    request = InferRequest(1, head.SerializeToString(), [b"x"], accepts_many=True, depth=4)
    model.submit(request, lambda _: None)
    await asyncio.sleep(0)
    executed = pb.Executed(id=1, partial=True)
    model.pool.on_reply(a, executed.SerializeToString())
    assert a.batches.first is None
    asked = InferRequest(0, b"", [], caller=a.id)
    world.nested_calls.set_depth(asked)
    assert asked.depth == 5


def test_a_call_for_an_instance_s_only_request_has_its_caller_s_key() -> None:
    world = World(a=1, b=1)
    (a,) = world.instances["a"]
    first, second = world.ask("a"), world.ask("a")
    first.request.caller_key = b"key"
    world.run(a, first)
    assert world.ask("b", a).request.caller_key == b"key"
    world.run(a, first, second)
    assert world.ask("b", a).request.caller_key == b""
    second.request.caller_key = b"key"
    assert world.ask("b", a).request.caller_key == b"key"
