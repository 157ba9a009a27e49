"""Draining instances give their sequences' states away, by the messages of their streams."""

from __future__ import annotations

import pytest

from nereid.core.errors import ProtocolError, Unavailable
from nereid.core.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.caching.cache_client import CacheClient
from nereid.services.scheduler.executors.remote_instance import RemoteInstance
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.version_context import VersionContext
from tests.support.scheduler.cache_site import SECRETS, FakeLink
from tests.support.scheduler.fake_executors import Stream, executed, turn
from tests.support.scheduler.samples import model_of

CONFIG = """
max_batch_size: 4
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
sequence_batching {
  max_sequence_idle_microseconds: 3600000000
  direct { } state { input_name: "S" output_name: "T" data_type: TYPE_UINT8 dims: 1 }
}
"""

SNAPSHOTS = 'parameters { key: "sequence_snapshot_interval" value { string_value: "1" } }'


class World:
    """A version with instances, and the responses to its clients."""

    def __init__(
        self,
        link: FakeLink | None = None,
        *,
        config: str = CONFIG,
        kind: type[ModelVersion] = ModelVersion,
    ) -> None:
        """link: to a cache; each request makes a snapshot."""
        more = "" if link is None else SNAPSHOTS
        model = model_of(config + more, backend="onnxruntime")
        snapshots = None if link is None else CacheClient(link, SECRETS, 60.0)
        self.version = kind(model, 1, VersionContext(snapshots=snapshots))
        self.responses: list[str] = []
        self.idle: list[str] = []
        self.number = 0

    def instance(self, name: str) -> tuple[RemoteInstance, Stream]:
        stream = Stream()
        instance = RemoteInstance(1, name, "executor", stream, has_states=True)
        self.version.add_instance(instance)
        return instance, stream

    def submit(self, which: int, *, start: bool = False) -> None:
        head = kserve_pb2.ModelInferRequest(model_name="m")
        head.inputs.add(name="I", datatype="UINT8", shape=[1, 1])
        self.number += 1
        request = InferRequest(self.number, head.SerializeToString(), [b"x"])
        request.accepts_many = True
        request.parameters = {"sequence_id": which, "sequence_start": start}
        self.version.submit(request, self._on_response)

    def _on_response(self, response: InferResponse) -> None:
        self.responses.append(response.error.message if response.error else "")

    def retire(self, instance: RemoteInstance) -> None:
        """As the loader does it."""
        self.version.retire_instance(instance)
        if instance.at_work:
            instance.on_idle = lambda: self.idle.append(instance.name)
        else:
            self.idle.append(instance.name)


async def began(sequences: int) -> tuple[World, RemoteInstance, Stream]:
    """A world whose only instance has the states of so many sequences."""
    world = World()
    instance, stream = world.instance("old")
    for which in range(sequences):
        world.submit(which + 1, start=True)
    await turn()
    world.version.on_reply(instance, executed(stream.sent.pop()))
    assert world.responses == [""] * sequences
    return world, instance, stream


def states(export: pb.Batch, *slots: int) -> bytes:
    reply = pb.Executed(id=export.id)
    for slot in slots:
        reply.states.add(slot=slot, state=b"state %d" % slot)
    return reply.SerializeToString()


async def finish(world: World) -> None:
    world.version.fail_all(Unavailable("over"))
    await turn()
    world.version.close()


async def test_an_instance_without_sequences_is_idle_at_once() -> None:
    world = World()
    instance, stream = world.instance("old")
    world.retire(instance)
    assert world.idle == ["old"]
    assert stream.sent == []


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (ModelVersion, CONFIG + "model_transaction_policy { decoupled: true }"),
        (ModelVersion, CONFIG.replace("direct { }", "direct { } iterative_sequence: true")),
    ],
    ids=["decoupled", "iterative"],
)
@pytest.mark.parametrize("surplus", [False, True])
async def test_states_do_not_move_where_a_request_has_several_responses(
    kind: type[ModelVersion], config: str, surplus: bool
) -> None:
    world = World(config=config, kind=kind)
    instance, stream = world.instance("old")
    for start in (True, False):
        world.submit(1, start=start)
    await turn()
    if surplus:
        world.version.retire_after_sequences(instance)
        assert instance.at_work
        instance.on_idle = lambda: world.idle.append(instance.name)
    else:
        world.retire(instance)
    assert world.idle == []
    for _ in range(1 + surplus):
        (batch,) = stream.sent
        stream.sent.clear()
        assert not batch.exported_slots
        world.version.on_reply(instance, executed(batch))
        await turn()
    errors = [each for each in world.responses if each]
    if surplus:
        assert errors == []
    else:
        assert ["instance 'old' is gone" in each for each in errors] == [True]
    if surplus and kind is ModelVersion:
        # It has not had its END.
        world.version.retire_instance(instance)
        assert not instance.at_work
    else:
        assert world.idle == ["old"]
    assert stream.sent == []


async def test_states_are_asked_for_until_all_have_come() -> None:
    world, instance, stream = await began(3)
    world.submit(3)
    world.retire(instance)
    await turn()
    # A request waits for the third one's.
    assert [list(each.exported_slots) for each in stream.sent] == [[3, 2, 1]]
    world.version.on_reply(instance, states(stream.sent[0], 3, 1))
    assert [list(each.exported_slots) for each in stream.sent] == [[3, 2, 1], [2]]
    assert world.idle == []
    world.version.on_reply(instance, states(stream.sent[1], 2))
    assert world.idle == ["old"]
    _, other = world.instance("new")
    await turn()
    (batch,) = other.sent
    (member,) = [each for each in batch.members if each.HasField("restore")]
    assert member.restore.state == b"state 3"


async def test_states_come_after_the_last_batch() -> None:
    world, instance, stream = await began(1)
    world.submit(1)
    await turn()
    batch = stream.sent.pop()
    world.retire(instance)
    assert stream.sent == []
    world.version.on_reply(instance, executed(batch))
    assert world.responses == ["", ""]
    assert [list(each.exported_slots) for each in stream.sent] == [[1]]


async def test_a_reply_without_states_loses_the_sequences(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, instance, stream = await began(2)
    world.submit(2)
    world.retire(instance)
    with pytest.raises(ProtocolError):
        world.version.on_reply(instance, b"\xff")
    world.version.on_reply(instance, states(stream.sent[0]))
    assert world.idle == ["old"]
    await turn()
    assert "the state of sequence 2 of model 'm' is lost" in world.responses[-1]
    with pytest.raises(Unavailable, match="the state of sequence 1 of model 'm' is lost"):
        world.submit(1)
    assert "returned no states of its sequences" in caplog.text


async def test_an_instance_may_be_lost_before_it_has_given_states_away() -> None:
    world, instance, stream = await began(2)
    world.submit(1)
    world.retire(instance)
    world.version.on_reply(instance, states(stream.sent[0], 2))
    world.version.lose_instance(instance, "it died")
    assert not instance.at_work
    await turn()
    assert "sequence 1 of model 'm' is lost: it died" in world.responses[-1]
    # The other one's is here.
    world.submit(2)
    _, other = world.instance("new")
    await turn()
    assert other.sent[0].members[-1].restore.state == b"state 2"


async def test_states_wait_until_there_is_memory_for_them() -> None:
    world, instance, stream = await began(2)
    transfers = world.version._transfers
    assert transfers is not None
    moves = transfers._moves
    moves.max_kept_bytes = 3
    world.retire(instance)
    world.version.on_reply(instance, states(stream.sent[0], 1))
    # The second one waits for the first one's next request.
    assert len(stream.sent) == 1
    new, other = world.instance("new")
    world.submit(1)
    await turn()
    world.version.on_reply(new, executed(other.sent.pop()))
    await turn()
    assert moves.kept_bytes == 0
    assert [list(each.exported_slots) for each in stream.sent] == [[2, 1], [2]]


@pytest.mark.parametrize("found", ["the last one", "an older one", "none"])
async def test_sequences_of_a_lost_instance_wait_for_their_snapshots(found: str) -> None:
    link = FakeLink()
    world = World(link)
    instance, stream = world.instance("old")
    for step in range(2):
        world.submit(1, start=step == 0)
        await turn()
        batch = stream.sent.pop()
        assert batch.members[0].returns_state
        reply = pb.Executed.FromString(executed(batch))
        reply.states.add(slot=1, state=b"state %d" % step)
        world.version.on_reply(instance, reply.SerializeToString())
    first, last = link.stores()
    assert first.key == last.key
    world.submit(1)
    await turn()
    # It was being executed.
    world.version.lose_instance(instance, "it died")
    (lookup,) = link.lookups()
    assert lookup.key == last.key
    _, other = world.instance("new")
    await turn()
    assert other.sent == []
    link.send_results({"the last one": last.value, "an older one": first.value}.get(found))
    await turn()
    if found == "the last one":
        assert other.sent[0].members[0].restore.state == b"state 1"
    else:
        assert "sequence 1 of model 'm' is lost" in world.responses[-1]
        assert "there is no snapshot of it" in world.responses[-1]


async def test_without_a_link_to_the_cache_there_is_no_snapshot() -> None:
    link = FakeLink()
    world = World(link)
    instance, stream = world.instance("old")
    world.submit(1, start=True)
    await turn()
    reply = pb.Executed.FromString(executed(stream.sent.pop()))
    reply.states.add(slot=1, state=b"state")
    world.version.on_reply(instance, reply.SerializeToString())
    link.up = False
    world.version.lose_instance(instance, "it died")
    with pytest.raises(Unavailable, match="there is no snapshot of it"):
        world.submit(1)


@pytest.mark.parametrize("continues", [True, False])
async def test_a_deferred_request_has_no_snapshot_and_the_next_one_has(*, continues: bool) -> None:
    """Its response comes when the batch has been executed; the state may change with it."""
    world = World(FakeLink())
    instance, stream = world.instance("old")
    world.submit(1, start=True)
    await turn()
    batch = stream.sent.pop()
    deferred = pb.Executed(id=batch.id, partial=True)
    world.version.on_reply(instance, deferred.SerializeToString())
    deferred.responses.add(id=0, head=b"h")
    world.version.on_reply(instance, deferred.SerializeToString())
    assert world.responses == [""]
    if continues:
        world.submit(1)
        await turn()
        reply = pb.Executed.FromString(executed(stream.sent.pop()))
        reply.states.add(slot=1, state=b"state")
        world.version.on_reply(instance, reply.SerializeToString())
    world.version.lose_instance(instance, "it died")
    if continues:
        world.submit(1)
    else:
        with pytest.raises(Unavailable, match="sequence 1 of model 'm' is lost: it died"):
            world.submit(1)
