"""A version with iterative sequences, with instances whose streams are lists."""

from typing import Any

import pytest

from nereid.core.wire.messages import MovedResponse
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.world import Stream, VersionWorld, turn

DIRECT = "sequence_batching { iterative_sequence: true } "
OLDEST = """
sequence_batching {
  iterative_sequence: true oldest { max_candidate_sequences: 2 preserve_ordering: true }
}
"""
DECOUPLED = "model_transaction_policy { decoupled: true } "
PAUSE, CANCEL = pb.MemberControl.PAUSE, pb.MemberControl.CANCEL


class World(VersionWorld):
    def __init__(self, more: str = "", strategy: str = DIRECT) -> None:
        super().__init__("max_batch_size: 4 " + strategy + more)

    def executor(self, number: int = 1) -> tuple[RemoteInstance, Stream]:
        return self.instance(f"i{number}", number, accepts_controls=True)

    async def submit_one(self, number: int) -> None:
        (self.entry,) = self.submit(number, accepts_many=True)
        await turn()

    async def execute(
        self,
        instance: RemoteInstance,
        number: int,
        *outcomes: str,
        partial: bool = False,
        busy: bool = False,
    ) -> None:
        """Its outcomes by member: "again", "more" and "last" responses, or an error's text."""
        frame = pb.Executed(id=number, partial=partial, busy=busy)
        for index, outcome in enumerate(outcomes):
            response = frame.responses.add(id=index if partial else 0)
            if outcome == "again":
                response.rescheduled = True
            elif outcome in {"more", "last"}:
                response.head = b"head"
                response.more = outcome == "more"
            else:
                response.error.code, response.error.message = 13, outcome
        self.model.pool.on_reply(instance, frame.SerializeToString())
        await turn()

    def kinds(self) -> list[str]:
        """Of all responses; an empty one announces a decoupled model's."""
        return [
            each.error.message if each.error else "more" if each.more else "last"
            for each in self.responses
        ]


def started(batch: pb.Batch) -> list[bool]:
    return [member.parameters["sequence_start"].bool_param for member in batch.members]


async def test_a_rescheduled_request_shares_the_next_batch() -> None:
    it = World()
    instance, stream = it.executor()
    await it.submit_one(1)
    await it.submit_one(2)
    assert [started(batch) for batch in stream.sent] == [[True]]
    await it.execute(instance, 1, "again")
    assert [started(batch) for batch in stream.sent[1:]] == [[False, True]]
    await it.execute(instance, 2, "last", "again")
    await it.execute(instance, 3, "again", "again")
    await it.execute(instance, 4, "last", "last")
    assert sorted(each.id for each in it.responses) == [1, 2]
    assert it.kinds() == ["last", "last"]
    statistics = it.model.statistics
    # Of each iteration, but null requests'.
    assert statistics.success.count == statistics.inference_count == 5
    assert statistics.execution_count == 4
    assert not statistics.responses


@pytest.mark.parametrize("executing", [True, False])
async def test_a_request_with_responses_fails_once_with_its_instance(executing: bool) -> None:
    it = World(DECOUPLED)
    one, stream = it.executor(1)
    await it.submit_one(1)
    await it.execute(one, 1, "more", partial=True, busy=True)
    if executing:
        await it.execute(one, 1, "again", partial=True)
        await it.execute(one, 2, "more", partial=True, busy=True)
        assert len(stream.sent) == 2
        it.model.pool.lose_instance(one, "the executor is gone")
    else:
        one.on_idle = lambda: None
        it.model.pool.roster.retire(one)
        await it.execute(one, 1, "again", partial=True)
        it.model.pool.lose_instance(one, "the executor is gone")
    _, other = it.executor(2)
    await turn()
    assert other.sent == []
    *before, error = it.kinds()
    assert {*before} == {"more"}
    assert ("2 responses into the request" if executing else "is lost") in error


async def test_only_the_last_response_has_the_place_in_a_sequence() -> None:
    it = World(DECOUPLED)
    one, _ = it.executor()
    parameters: dict[str, Any] = {"sequence_id": 7, "sequence_start": True}
    it.submit(1, accepts_many=True, parameters=parameters, wants_sequence_place=True)
    await turn()
    await it.execute(one, 1, "more", partial=True, busy=True)
    await it.execute(one, 1, "last", partial=True)
    places = [each.sequence_place for each in it.responses]
    assert {*places[:-1]} == {None}
    assert places[-1] is not None
    assert places[-1].number == 1


async def test_responses_of_all_iterations_are_counted() -> None:
    it = World(DECOUPLED)
    one, _ = it.executor()
    await it.submit_one(1)
    for number in (1, 2):
        await it.execute(one, number, "more", partial=True, busy=True)
        await it.execute(one, number, "again", partial=True)
    await it.execute(one, 3, "last", partial=True)
    assert it.kinds() == ["more", "more", "last"]
    assert [each.success.count for each in it.model.statistics.responses] == [1, 1, 1]


async def test_an_instance_may_reschedule_before_and_after_it_is_free() -> None:
    it = World(DECOUPLED)
    one, stream = it.executor()
    await it.submit_one(1)
    await it.execute(one, 1, "again", partial=True, busy=True)
    assert len(stream.sent) == 1
    await it.execute(one, 1, partial=True)
    assert len(stream.sent) == 2
    await it.execute(one, 2, partial=True)
    await it.execute(one, 2, "again", partial=True)
    assert len(stream.sent) == 3
    assert it.model.statistics.success.count == 2
    await it.execute(one, 3, "last", partial=True)
    # A lone response is announced.
    assert it.kinds() == ["more", "last"]
    assert not one.at_work


async def test_what_is_rescheduled_after_it_was_cancelled_is_dropped() -> None:
    it = World()
    one, stream = it.executor()
    await it.submit_one(1)
    it.model.cancel(it.entry)
    await turn()
    kinds = [control.kind for batch in stream.sent for control in batch.controls]
    assert {*kinds} == {CANCEL}
    await it.execute(one, 1, "again")
    assert not one.at_work
    assert all(batch.controls for batch in stream.sent[1:])
    assert it.responses == []
    await it.submit_one(2)
    assert started(stream.sent[-1]) == [True]


async def test_a_request_is_cancelled_between_its_iterations() -> None:
    it = World()
    one, _ = it.executor(1)
    await it.submit_one(1)
    one.on_idle = lambda: None
    it.model.pool.roster.retire(one)
    await it.execute(one, 1, "again")
    it.model.cancel(it.entry)
    _, stream = it.executor(2)
    await turn()
    assert stream.sent == []
    assert it.responses == []


async def test_a_client_that_cannot_keep_up_holds_the_next_iteration_as_well() -> None:
    it = World(DECOUPLED)
    one, stream = it.executor()
    await it.submit_one(1)
    it.entry.set_flow(paused=True)
    await it.execute(one, 1, "again", partial=True)

    def pauses() -> list[int]:
        controls = [control for batch in stream.sent for control in batch.controls]
        return [control.batch for control in controls if control.kind == PAUSE]

    assert pauses() == [1, 2]
    it.entry.set_flow(paused=False)
    await it.execute(one, 2, "again", partial=True)
    assert pauses() == [1, 2]
    await it.execute(one, 3, "last", partial=True)
    # Of a request that has ended nothing is remembered.
    it.entry.set_flow(paused=True)
    assert pauses() == [1, 2]


async def test_preserve_ordering_holds_for_requests_that_are_rescheduled() -> None:
    it = World(strategy=OLDEST)
    one, _ = it.executor()
    await it.submit_one(1)
    await it.execute(one, 1, "again")
    await it.submit_one(2)
    await it.execute(one, 2, "again")
    await it.execute(one, 3, "last", "again")
    assert it.kinds() == []
    await it.execute(one, 4, "last")
    assert [each.id for each in it.responses] == [1, 2]


async def test_a_request_begins_anew_a_limited_number_of_times() -> None:
    """Also if its instances are lost between its iterations."""
    it = World()
    limit = VersionContext().limits.max_retries
    await it.submit_one(1)
    for number in range(limit + 1):
        one, stream = it.executor(number)
        await turn()
        assert started(stream.sent[0]) == [True]
        it.model.pool.roster.retire(one)
        await it.execute(one, 1, "again")
    (error,) = it.kinds()
    assert "send the request again" in error


async def test_a_request_between_its_iterations_is_not_returned_to_another_scheduler() -> None:
    """It would run twice, and its client have its responses twice."""
    it = World(DECOUPLED)
    one, stream = it.executor()
    await it.submit_one(1)
    await it.execute(one, 1, "more", partial=True, busy=True)
    await it.submit_one(2)
    frame = pb.Executed(id=1, partial=True)
    frame.responses.add(id=0).rescheduled = True
    it.model.pool.on_reply(one, frame.SerializeToString())
    it.model.return_queued()
    assert [isinstance(each, MovedResponse) for each in it.responses] == [False, True]
    await turn()
    assert [started(batch) for batch in stream.sent[1:]] == [[False]]
    await it.execute(one, 2, "last", partial=True)
    assert [each.id for each in it.responses if not isinstance(each, MovedResponse)] == [1, 1]
    await it.model.idle()
