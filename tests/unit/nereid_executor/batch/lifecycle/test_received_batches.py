"""The life of a batch at its instance; of a withdrawn one either side wins, never both."""

from __future__ import annotations

import threading

import pytest

from nereid.core.errors import ProtocolError
from nereid_executor.batch.lifecycle.received_batches import (
    BatchState,
    ReceivedBatch,
    ReceivedBatches,
)

Batches = ReceivedBatches[ReceivedBatch]


def begun(batches: Batches, number: int, batch_id: int | None = None) -> ReceivedBatch:
    batch = ReceivedBatch(number if batch_id is None else batch_id, number, (), 0)
    if batch.id:
        assert batches.read(batch.id)
    batches.begin(batch)
    return batch


def deferred(batches: Batches, number: int) -> ReceivedBatch:
    batch = begun(batches, number)
    batches.advance(batch, executed=True, waiting=True)
    return batch


def ended(batches: Batches, number: int) -> None:
    batches.end(begun(batches, number))


def state_of(batch: ReceivedBatch) -> BatchState:
    """A function, since a checker takes an attribute to be what was last asserted of it."""
    return batch.state


# ---- given back


def test_a_batch_that_was_not_read_can_be_withdrawn() -> None:
    batches = Batches()
    ended(batches, 1)
    assert batches.withdraw(2)
    assert not batches.read(2)
    assert batches.read(3)


def test_a_batch_that_was_read_cannot_be_withdrawn() -> None:
    batches = Batches()
    begun(batches, 1)
    assert not batches.withdraw(1)


def test_several_withdrawn_batches_may_lie_unread() -> None:
    batches = Batches()
    assert batches.withdraw(2)
    assert batches.withdraw(4)
    assert [batches.read(number) for number in (2, 3, 4, 5)] == [False, True, False, True]


def test_a_withdrawn_batch_that_was_lost_with_its_stream_is_forgotten() -> None:
    batches = Batches()
    assert batches.withdraw(2)
    assert [batches.read(number) for number in (3, 4)] == [True, True]


def test_in_a_race_a_batch_is_begun_or_withdrawn() -> None:
    batches = Batches()
    withdrawn: dict[int, bool] = {}
    start = threading.Barrier(2)

    def withdraw() -> None:
        start.wait()
        for number in range(1, 2001):
            withdrawn[number] = batches.withdraw(number)

    thread = threading.Thread(target=withdraw)
    thread.start()
    start.wait()
    read = {number: batches.read(number) for number in range(1, 2001)}
    thread.join()
    assert all(read[number] != withdrawn[number] for number in read)


# ---- what breaks the protocol


@pytest.mark.parametrize("number", [0, 1, 2])
def test_batches_come_in_the_order_of_their_numbers(number: int) -> None:
    batches = Batches()
    ended(batches, 2)
    with pytest.raises(ProtocolError, match=f"batch {number} comes after batch 2"):
        batches.read(number)


def test_no_batch_comes_while_as_many_execute_as_may() -> None:
    batches = Batches(2)
    begun(batches, 1)
    begun(batches, 2)
    assert not batches.may_begin
    with pytest.raises(ProtocolError, match="batch 3 comes while batch 1, batch 2 executes"):
        batches.read(3)


def test_a_control_is_for_a_batch_that_has_come() -> None:
    batches = Batches()
    first = deferred(batches, 1)
    second = begun(batches, 2, 2)
    assert [batches.controlled(1), batches.controlled(2)] == [first, second]
    batches.end(second)
    assert batches.controlled(2) is None
    with pytest.raises(ProtocolError, match="a control for batch 3, which has not come"):
        batches.controlled(3)


def test_states_are_asked_for_while_no_batch_executes_and_before_no_other_message() -> None:
    batches = Batches()
    batch = begun(batches, 1)
    with pytest.raises(ProtocolError, match="states are asked for while batch 1 executes"):
        batches.begin_export(2, [7])
    batches.end(batch)
    with pytest.raises(ProtocolError, match="comes after"):
        batches.begin_export(1, [7])
    batches.begin_export(2, [7])
    with pytest.raises(ProtocolError, match="batch 3 comes before the states"):
        batches.read(3)
    with pytest.raises(ProtocolError, match="batch 3 comes before the states"):
        batches.begin_export(3, [8])


# ---- from begun to ended


def test_a_batch_is_complete_once_all_have_responded_and_ends_once_that_is_sent() -> None:
    batches = Batches()
    batch = begun(batches, 1)
    batches.advance(batch, executed=False, waiting=True)
    assert state_of(batch) is BatchState.EXECUTING
    batches.advance(batch, executed=False, waiting=False)
    assert state_of(batch) is BatchState.COMPLETE
    assert batches.busy
    assert batches.completed == 0
    batches.end(batch)
    assert not batches.busy
    assert batches.completed == 1


def test_a_decoupled_batch_is_complete_once_it_was_executed_as_well() -> None:
    batches = Batches(decoupled=True)
    batch = begun(batches, 1)
    batches.advance(batch, executed=False, waiting=False)
    assert state_of(batch) is BatchState.EXECUTING
    batches.advance(batch, executed=True, waiting=False)
    assert state_of(batch) is BatchState.COMPLETE


def test_while_responses_are_deferred_the_next_batch_may_come() -> None:
    batches = Batches()
    first = deferred(batches, 1)
    assert state_of(first) is BatchState.DEFERRED
    assert batches.busy
    second = begun(batches, 2)
    assert batches.begun() == [first, second]
    assert batches.oldest() is second
    batches.advance(first, executed=False, waiting=True)
    assert state_of(first) is BatchState.DEFERRED
    batches.advance(first, executed=False, waiting=False)
    assert state_of(first) is BatchState.COMPLETE
    batches.end(first)
    assert batches.begun() == [second]


def test_the_model_has_numbers_of_its_own() -> None:
    batches = Batches()
    batch = begun(batches, 7, 1)
    assert batches.find(7) is batch
    assert batches.find(1) is None
    assert batches.controlled(1) is batch


def test_batches_that_nobody_sends_are_not_counted() -> None:
    batches = Batches()
    batches.end(begun(batches, 1, 0))
    assert batches.completed == 0
    assert batches.read(1)


def test_states_are_given_once_no_response_can_change_them() -> None:
    batches = Batches()
    first = deferred(batches, 1)
    batches.begin_export(2, [7, 8])
    assert batches.due_export() is None
    batches.end(first)
    assert batches.due_export() == (2, [7, 8])
    assert batches.due_export() is None


def test_what_its_stream_leaves_behind_is_lost() -> None:
    batches = Batches()
    first = deferred(batches, 1)
    batches.end(begun(batches, 2))
    batches.begin_export(3, [7])
    assert batches.lose_all() == [first]
    assert state_of(first) is BatchState.LOST
    assert not batches.busy
    assert batches.due_export() is None
    # Its numbers go on, but for the next scheduler's.
    with pytest.raises(ProtocolError):
        batches.read(3)
    assert batches.withdraw(4)
    batches.begin_session()
    assert [batches.read(1), batches.read(4)] == [True, True]
