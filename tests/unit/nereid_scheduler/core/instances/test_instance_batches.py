"""The life of an instance's batches: each transition of the table, and what breaks the protocol."""

import pytest

from nereid.core.errors import ProtocolError
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_batches import (
    ENDED,
    EXECUTING,
    RESPONDING,
    WAITING,
    WITHDRAWING,
    InstanceBatches,
    SentBatch,
)
from nereid_scheduler.core.requests.entry import Batch, Entry
from tests.support.scheduler.samples import entry_of


def batch_of(entries: int = 1) -> Batch:
    return Batch([entry_of() for _ in range(entries)], entries, "single")


def sent_to(batches: InstanceBatches, entries: int = 1, *, at_ns: int = 10) -> SentBatch:
    sent = SentBatch(batches.last_id + 1, batch_of(entries), at_ns)
    batches.add_batch(sent)
    return sent


def end(batches: InstanceBatches, sent: SentBatch, now_ns: int = 100) -> None:
    sent.end_execution(pb.Executed(id=sent.id, compute_infer_ns=5), now_ns)
    batches.end_first(now_ns)


def test_a_batch_is_executed_and_has_ended() -> None:
    batches = InstanceBatches()
    sent = sent_to(batches)
    assert (sent.state, batches.first, batches.at_work) == (EXECUTING, sent, True)
    assert batches.replying(1) is sent
    end(batches, sent)
    assert (sent.state, batches.first, batches.at_work) == (ENDED, None, False)
    assert sent.execution is not None
    assert (sent.execution.started_ns, sent.execution.compute_infer_ns) == (10, 5)


def test_a_waiting_batch_is_executed_next() -> None:
    batches = InstanceBatches()
    first, second = sent_to(batches), sent_to(batches, at_ns=20)
    assert second.state is WAITING
    end(batches, first, 100)
    assert (batches.first, batches.waiting, second.state) == (second, None, EXECUTING)
    # It began when the first had ended, which is known only then; it was computed for 5 ns.
    end(batches, second, 103)
    assert second.execution is not None
    assert second.execution.started_ns == 98


def test_a_waiting_batch_has_begun_no_earlier_than_it_was_sent() -> None:
    batches = InstanceBatches()
    first, second = sent_to(batches), sent_to(batches, at_ns=99)
    end(batches, first, 100)
    end(batches, second, 101)
    assert second.execution is not None
    assert second.execution.started_ns == 99


def test_nothing_is_sent_behind_what_may_be_given_back() -> None:
    batches = InstanceBatches()
    first, second = sent_to(batches), sent_to(batches)
    with pytest.raises(AssertionError):
        sent_to(batches)
    assert batches.withdraw_waiting() is second
    end(batches, first)
    with pytest.raises(AssertionError):
        sent_to(batches)


@pytest.mark.parametrize("ended_first", [False, True])
def test_a_batch_is_given_back_once(ended_first: bool) -> None:
    batches = InstanceBatches()
    first, second = sent_to(batches), sent_to(batches)
    assert batches.withdraw_waiting() is second
    assert batches.withdraw_waiting() is None
    if ended_first:
        end(batches, first)
        assert (batches.first, second.state) == (second, WITHDRAWING)
    assert batches.end_withdrawal(2) is second
    assert second.state is ENDED
    assert batches.first is (None if ended_first else first)
    with pytest.raises(ProtocolError, match="gives batch 2 back, which it does not have"):
        batches.end_withdrawal(2)
    with pytest.raises(ProtocolError, match="a response to batch 2"):
        batches.replying(2)


def test_a_batch_that_had_begun_is_not_given_back() -> None:
    batches = InstanceBatches()
    first, second = sent_to(batches), sent_to(batches)
    batches.withdraw_waiting()
    end(batches, first)
    assert batches.replying(2) is second
    end(batches, second)
    assert second.state is ENDED


def test_what_is_not_asked_back_is_not_given_back() -> None:
    batches = InstanceBatches()
    sent_to(batches)
    sent_to(batches)
    assert InstanceBatches().withdraw_waiting() is None
    for number in (1, 2):
        with pytest.raises(ProtocolError, match="was not asked back"):
            batches.end_withdrawal(number)


def test_replies_out_of_order_break_the_protocol() -> None:
    batches = InstanceBatches()
    with pytest.raises(ProtocolError, match="a response to batch 1 while executing none"):
        batches.replying(1)
    sent_to(batches)
    sent_to(batches)
    with pytest.raises(ProtocolError, match="a response to batch 2 while executing batch 1"):
        batches.replying(2)


def test_responses_are_counted() -> None:
    sent = SentBatch(1, batch_of(2), 0)
    sent.check_whole(2)
    with pytest.raises(ProtocolError, match="1 responses to the 2 requests of batch 1"):
        sent.check_whole(1)
    # Its members have no responses of their own.
    with pytest.raises(ProtocolError, match="member 0 of batch 1, which waits for none"):
        sent.open_member(0)
    assert sent.open_entries() == sent.batch.entries


def test_members_respond_one_by_one_while_the_next_batch_is_executed() -> None:
    batches = InstanceBatches()
    sent = sent_to(batches, 2)
    one, other = sent.track_members(10)
    end(batches, sent)
    assert (sent.state, batches.first, batches.at_work) == (RESPONDING, None, True)
    following = sent_to(batches)
    assert batches.replying(1) is sent
    sent.end_member(sent.open_member(1), 200)
    batches.end_responding(sent)
    assert (sent.state, other.ended_ns) == (RESPONDING, 200)
    with pytest.raises(ProtocolError, match="member 1 of batch 1"):
        sent.open_member(1)
    with pytest.raises(ProtocolError, match="member 2 of batch 1"):
        sent.open_member(2)
    assert sent.open_entries() == [one.entry]
    assert batches.entries() == [one.entry, *following.batch.entries]
    assert batches.place_of(one.entry) == (1, 0)
    assert batches.place_of(following.batch.entries[0]) == (2, 0)
    assert batches.place_of(entry_of()) is None
    sent.end_member(one, 300)
    batches.end_responding(sent)
    assert sent.state is ENDED
    batches.end_responding(sent)
    assert batches.place_of(one.entry) is None


def test_members_that_end_before_the_execution_leave_nothing_open() -> None:
    batches = InstanceBatches()
    sent = sent_to(batches)
    (member,) = sent.track_members(10)
    sent.end_member(member, 20)
    batches.end_responding(sent)
    assert sent.state is EXECUTING
    end(batches, sent)
    assert (sent.state, batches.at_work) == (ENDED, False)


def three_batches() -> tuple[InstanceBatches, list[SentBatch]]:
    """One that responds, one that executes, one that waits."""
    batches = InstanceBatches()
    responding = sent_to(batches)
    responding.track_members(10)
    end(batches, responding)
    return batches, [responding, sent_to(batches), sent_to(batches)]


@pytest.mark.parametrize(("begun", "count"), [(1, 1), (2, 2), (3, 3)])
def test_a_crash_report_names_what_had_begun(begun: int, count: int) -> None:
    batches, sent = three_batches()
    assert batches.lose_begun(begun) == sent[:count]
    rest, waiting = batches.lose_all()
    assert [*rest, *([waiting] if waiting else [])] == sent[count:]
    assert {each.state for each in sent} == {ENDED}


def test_what_was_lost_with_a_stream_is_not_given_back_on_the_next() -> None:
    batches, (responding, first, waiting) = three_batches()
    batches.withdraw_waiting()
    assert batches.lose_all() == ([responding, first], waiting)
    assert {each.state for each in (responding, first, waiting)} == {ENDED}
    assert not batches.at_work
    # It came over another channel.
    assert batches.end_withdrawal(3) is None
    assert sent_to(batches).id == 4
    with pytest.raises(ProtocolError):
        batches.replying(2)
    assert batches.lose_all()[1] is None


def test_an_export_has_a_number_among_the_batches() -> None:
    batches = InstanceBatches()
    sent = sent_to(batches)
    end(batches, sent)
    assert batches.begin_export([7]) == batches.exporting == 2
    assert sent_to(batches).id == 3
    batches.lose_all()
    assert batches.exporting == 0


def test_an_export_ends_with_states_that_were_asked_for() -> None:
    batches = InstanceBatches()
    assert not batches.end_export(0, [])
    number = batches.begin_export([7, 5])
    assert not batches.end_export(number + 1, [7])
    for others in ([3], [7, 5, 3], [7, 7]):
        with pytest.raises(ProtocolError, match="was asked for"):
            batches.end_export(number, others)
    assert batches.exporting == number
    assert batches.end_export(number, [5])
    assert not batches.end_export(number, [5])
    assert batches.end_export(batches.begin_export([5]), [])


def test_entries_of_a_batch_that_executes() -> None:
    batches = InstanceBatches()
    assert batches.entries() == []
    sent = sent_to(batches, 2)
    entries: list[Entry] = sent.batch.entries
    assert batches.entries() == entries
