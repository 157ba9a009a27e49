"""The states of a batch: which frame follows which response."""

from __future__ import annotations

import pytest

from nereid.core.wire.codecs import write_error
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import BatchMessage
from nereid_executor.batch.lifecycle.received_batches import BatchState, ReceivedBatches
from nereid_executor.batch.open_batches import OpenBatch

FAILED = ErrorStatus(13, "no")


def pieces(text: str) -> list[bytes]:
    executed = pb.Executed()
    write_error(ErrorStatus(13, text), executed.responses.add().error)
    return [executed.SerializeToString()]


def begun(*batch_indices: int, decoupled: bool = False) -> OpenBatch:
    """Return a batch that has begun, alone at its instance."""
    batch = OpenBatch(BatchMessage(5, []), 1, 100, batch_indices, decoupled=decoupled)
    received: ReceivedBatches[OpenBatch] = ReceivedBatches(decoupled=decoupled)
    received.begin(batch)
    batch.execution = received
    return batch


def move_on(batch: OpenBatch, responded_ns: int = 0, *, executed: bool = False) -> bytes | None:
    return batch.next_frame(batch.execution, responded_ns, executed=executed)


def state_of(batch: OpenBatch) -> BatchState:
    """A function, since a checker takes an attribute to be what was last asserted of it."""
    return batch.state


def read(frame: bytes | None) -> tuple[bool, bool, list[tuple[int, str]]]:
    """Whether it is partial and busy, and its responses by batch index (0 in whole frames)."""
    assert frame is not None
    executed = pb.Executed.FromString(frame)
    assert executed.id == 5
    responses = [(each.id, each.error.message) for each in executed.responses]
    return executed.partial, executed.busy, responses


def test_a_batch_is_complete_once_all_have_responded() -> None:
    batch = begun(0, 1)
    batch.begun_ns = 130
    batch.add_final_responses([(1, pieces("b"))])
    assert move_on(batch) is None
    assert state_of(batch) is BatchState.EXECUTING
    batch.add_final_responses([(0, pieces("a"))])
    # Before the model says that it has executed it.
    frame = move_on(batch, 150)
    assert read(frame) == (False, False, [(0, "a"), (0, "b")])
    assert state_of(batch) is BatchState.COMPLETE
    executed = pb.Executed.FromString(frame or b"")
    assert (executed.compute_input_ns, executed.compute_infer_ns) == (30, 20)
    assert executed.compute_output_ns > 0


@pytest.mark.parametrize("responded", [0, 1])
def test_responses_may_be_deferred(responded: int) -> None:
    batch = begun(0, 1)
    batch.add_final_responses([(member, pieces("a")) for member in range(responded)])
    first = [(0, "a")][:responded]
    assert read(move_on(batch, 150, executed=True)) == (True, False, first)
    assert state_of(batch) is BatchState.DEFERRED
    assert batch.open_requests() == [*range(responded, 2)]
    assert move_on(batch) is None
    for member in batch.open_requests():
        batch.add_final_responses([(member, pieces("b"))])
        assert read(move_on(batch)) == (True, False, [(member, "b")])
    assert state_of(batch) is BatchState.COMPLETE


def test_malformed_requests_are_responded_to_in_their_places() -> None:
    batch = begun(0, 2)
    batch.reject_request(1, FAILED)
    assert [batch.model_index(index) for index in range(3)] == [0, None, 1]
    batch.add_final_responses([(1, pieces("c")), (0, pieces("a"))])
    assert read(move_on(batch, 150)) == (False, False, [(0, "a"), (0, "no"), (0, "c")])


def test_open_requests_fail_with_the_model() -> None:
    batch = begun(0, 1)
    batch.add_final_responses([(0, pieces("a"))])
    batch.fail_open_requests(FAILED)
    assert read(move_on(batch, 150, executed=True)) == (False, False, [(0, "a"), (0, "no")])


def test_a_decoupled_batch_is_sent_as_it_responds() -> None:
    batch = begun(0, 1, decoupled=True)
    assert move_on(batch) is None
    batch.add_response(0, pieces("a"))
    frame = move_on(batch, 150)
    assert read(frame) == (True, True, [(0, "a")])
    assert pb.Executed.FromString(frame or b"").responses[0].more
    batch.add_final_responses([(0, pieces("b")), (1, pieces("c"))])
    assert read(move_on(batch, 150)) == (True, True, [(0, "b"), (1, "c")])
    # Without open members, but not executed.
    assert state_of(batch) is BatchState.EXECUTING
    assert read(move_on(batch, 150, executed=True)) == (True, False, [])
    assert state_of(batch) is BatchState.COMPLETE


def test_a_decoupled_batch_may_respond_after_execution() -> None:
    batch = begun(0, decoupled=True)
    assert read(move_on(batch, 150, executed=True)) == (True, False, [])
    assert state_of(batch) is BatchState.DEFERRED
    batch.add_response(0, pieces("a"))
    assert read(move_on(batch)) == (True, False, [(0, "a")])
    batch.add_final_responses([(0, pieces("b"))])
    assert read(move_on(batch)) == (True, False, [(0, "b")])
    assert state_of(batch) is BatchState.COMPLETE
