"""Draining instances give their sequences' states away, by the messages of their streams."""

from itertools import count

import pytest

from nereid.core.errors import ProtocolError, Unavailable
from nereid.core.wire.messages import Parameter
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.cache_site import SECRETS, FakeLink
from tests.support.scheduler.world import Stream, VersionWorld, executed, turn

CONFIG = """
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 3600000000
  direct { } state { input_name: "S" output_name: "T" data_type: TYPE_UINT8 dims: 1 }
}
"""

SNAPSHOTS = 'parameters { key: "sequence_snapshot_interval" value { string_value: "1" } }'


class World(VersionWorld):
    """A version with instances, and the responses to its clients."""

    def __init__(self, link: FakeLink | None = None, *, config: str = CONFIG) -> None:
        """link: to a cache; each request makes a snapshot."""
        snapshots = None if link is None else CacheClient(link, SECRETS, 60.0)
        context = VersionContext(snapshots=snapshots)
        more = "" if link is None else SNAPSHOTS
        super().__init__(config + more, backend="onnxruntime", context=context)
        self.numbers = count(1)

    def executor(self, name: str) -> tuple[RemoteInstance, Stream]:
        return self.instance(name, has_states=True)

    def step(self, which: int, *, start: bool = False) -> None:
        place: dict[str, Parameter] = {"sequence_id": which, "sequence_start": start}
        self.submit(next(self.numbers), accepts_many=True, parameters=place)

    def texts(self) -> list[str]:
        return [each.error.message if each.error else "" for each in self.responses]


async def began(sequences: int) -> tuple[World, RemoteInstance, Stream]:
    """A world whose only instance has the states of so many sequences."""
    world = World()
    instance, stream = world.executor("old")
    for which in range(sequences):
        world.step(which + 1, start=True)
    await turn()
    world.reply(instance, stream.sent.pop())
    assert world.texts() == [""] * sequences
    return world, instance, stream


def states(export: pb.Batch, *slots: int) -> bytes:
    reply = pb.Executed(id=export.id)
    for slot in slots:
        reply.states.add(slot=slot, state=b"state %d" % slot)
    return reply.SerializeToString()


@pytest.mark.parametrize(
    "config",
    [
        CONFIG + "model_transaction_policy { decoupled: true }",
        CONFIG.replace("direct { }", "direct { } iterative_sequence: true"),
    ],
    ids=["decoupled", "iterative"],
)
@pytest.mark.parametrize("surplus", [False, True])
async def test_states_do_not_move_where_a_request_has_several_responses(
    config: str, surplus: bool
) -> None:
    world = World(config=config)
    instance, stream = world.executor("old")
    for start in (True, False):
        world.step(1, start=start)
    await turn()
    if surplus:
        world.model.pool.roster.retire_after_sequences(instance)
        assert instance.at_work
        instance.on_idle = lambda: world.idle.append(instance.name)
    else:
        world.retire(instance)
    assert world.idle == []
    for _ in range(1 + surplus):
        (batch,) = stream.sent
        stream.sent.clear()
        assert not batch.exported_slots
        world.reply(instance, batch)
        await turn()
    errors = [each for each in world.texts() if each]
    if surplus:
        assert errors == []
    else:
        assert ["instance 'old' is gone" in each for each in errors] == [True]
    if surplus:
        # It has not had its END.
        world.model.pool.roster.retire(instance)
        assert not instance.at_work
    else:
        assert world.idle == ["old"]
    assert stream.sent == []


async def test_states_come_after_the_last_batch() -> None:
    world, instance, stream = await began(1)
    world.step(1)
    await turn()
    batch = stream.sent.pop()
    world.retire(instance)
    assert stream.sent == []
    world.reply(instance, batch)
    assert world.texts() == ["", ""]
    assert [list(each.exported_slots) for each in stream.sent] == [[1]]


async def test_a_reply_without_states_loses_the_sequences(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, instance, stream = await began(2)
    world.step(2)
    world.retire(instance)
    with pytest.raises(ProtocolError):
        world.model.pool.on_reply(instance, b"\xff")
    world.model.pool.on_reply(instance, states(stream.sent[0]))
    assert world.idle == ["old"]
    await turn()
    assert "the state of sequence 2 of model 'm' is lost" in world.texts()[-1]
    with pytest.raises(Unavailable, match="the state of sequence 1 of model 'm' is lost"):
        world.step(1)
    assert "returned no states of its sequences" in caplog.text


async def test_states_wait_until_there_is_memory_for_them() -> None:
    world, instance, stream = await began(2)
    moves = world.model.pool._transfers._moves
    moves.max_kept_bytes = 3
    world.retire(instance)
    world.model.pool.on_reply(instance, states(stream.sent[0], 1))
    # The second one waits for the first one's next request.
    assert len(stream.sent) == 1
    new, other = world.executor("new")
    world.step(1)
    await turn()
    world.reply(new, other.sent.pop())
    await turn()
    assert moves.kept_bytes == 0
    assert [list(each.exported_slots) for each in stream.sent] == [[2, 1], [2]]


def executed_with_state(batch: pb.Batch, state: bytes = b"state") -> bytes:
    reply = pb.Executed.FromString(executed(batch))
    reply.states.add(slot=1, state=state)
    return reply.SerializeToString()


@pytest.mark.parametrize("found", ["the last one", "an older one", "none"])
async def test_sequences_of_a_lost_instance_wait_for_their_snapshots(found: str) -> None:
    link = FakeLink()
    world = World(link)
    instance, stream = world.executor("old")
    for step in range(2):
        world.step(1, start=step == 0)
        await turn()
        batch = stream.sent.pop()
        assert batch.members[0].returns_state
        world.model.pool.on_reply(instance, executed_with_state(batch, b"state %d" % step))
    first, last = link.stores()
    assert first.key == last.key
    world.step(1)
    await turn()
    # It was being executed.
    world.model.pool.lose_instance(instance, "it died")
    (lookup,) = link.lookups()
    assert lookup.key == last.key
    _, other = world.executor("new")
    await turn()
    assert other.sent == []
    link.send_results({"the last one": last.value, "an older one": first.value}.get(found))
    await turn()
    if found == "the last one":
        assert other.sent[0].members[0].restore.state == b"state 1"
    else:
        assert "sequence 1 of model 'm' is lost" in world.texts()[-1]
        assert "there is no snapshot of it" in world.texts()[-1]


async def test_states_that_nobody_asked_for_break_the_stream_alone() -> None:
    world, instance, stream = await began(2)
    world.retire(instance)
    export = stream.sent[0]
    beside = pb.Executed.FromString(states(export, 1))
    beside.responses.add()
    for reply in (states(export, 3), states(export, 1, 1), beside.SerializeToString()):
        with pytest.raises(ProtocolError):
            world.model.pool.on_reply(instance, reply)
    # Nothing has changed.
    world.model.pool.on_reply(instance, states(export, 1, 2))
    assert world.idle == ["old"]


async def test_a_snapshot_that_nobody_asked_for_breaks_the_stream_alone() -> None:
    world = World(FakeLink())
    instance, stream = world.executor("old")
    world.step(1, start=True)
    await turn()
    batch = stream.sent.pop()
    slot = batch.members[0].sequence_slot
    for slots in ([slot + 1], [slot, slot]):
        reply = pb.Executed.FromString(executed(batch))
        for each in slots:
            reply.states.add(slot=each, state=b"state")
        with pytest.raises(ProtocolError, match="not asked for"):
            world.model.pool.on_reply(instance, reply.SerializeToString())
    assert world.texts() == []
    world.reply(instance, batch)
    assert world.texts() == [""]


async def test_without_a_link_to_the_cache_there_is_no_snapshot() -> None:
    link = FakeLink()
    world = World(link)
    instance, stream = world.executor("old")
    world.step(1, start=True)
    await turn()
    world.model.pool.on_reply(instance, executed_with_state(stream.sent.pop()))
    link.up = False
    world.model.pool.lose_instance(instance, "it died")
    with pytest.raises(Unavailable, match="there is no snapshot of it"):
        world.step(1)


async def test_an_instance_without_sequences_is_idle_at_once() -> None:
    world = World()
    instance, stream = world.executor("old")
    world.retire(instance)
    assert (world.idle, stream.sent) == (["old"], [])


async def test_an_instance_may_be_lost_before_it_has_given_states_away() -> None:
    world, instance, stream = await began(2)
    world.step(1)
    world.retire(instance)
    world.model.pool.on_reply(instance, states(stream.sent[0], 2))
    world.model.pool.lose_instance(instance, "it died")
    assert not instance.at_work
    await turn()
    assert "sequence 1 of model 'm' is lost: it died" in world.texts()[-1]


@pytest.mark.parametrize("continues", [True, False])
async def test_a_deferred_request_has_no_snapshot_and_the_next_one_has(continues: bool) -> None:
    """Its response comes when the batch has been executed; the state may change with it."""
    world = World(FakeLink())
    instance, stream = world.executor("old")
    world.step(1, start=True)
    await turn()
    deferred = pb.Executed(id=stream.sent.pop().id, partial=True)
    world.model.pool.on_reply(instance, deferred.SerializeToString())
    deferred.responses.add(id=0, head=b"h")
    world.model.pool.on_reply(instance, deferred.SerializeToString())
    assert world.texts() == [""]
    if continues:
        world.step(1)
        await turn()
        world.model.pool.on_reply(instance, executed_with_state(stream.sent.pop()))
    world.model.pool.lose_instance(instance, "it died")
    if continues:
        world.step(1)
    else:
        with pytest.raises(Unavailable, match="sequence 1 of model 'm' is lost: it died"):
            world.step(1)
