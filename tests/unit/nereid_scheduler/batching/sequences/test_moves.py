"""States that move between instances: rules one by one. What must hold in any order of events is
explored in tests/protocols.
"""

from typing import Any

import pytest

from nereid.core.errors import InvalidArgument
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.recovery import Transfer
from tests.support.scheduler.sequence_site import DIRECT, OLDEST, SequenceSite

STATES = 'state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 1 }'
SNAPSHOTS = 'parameters { key: "sequence_snapshot_interval" value { string_value: "%d" } }'


class Site(SequenceSite):
    """A snapshot of sequence 1 is made after each so many requests."""

    def __init__(self, interval: int = 1, *, store: bool = False, strategy: str = DIRECT) -> None:
        super().__init__(
            f"{strategy} {STATES} max_sequence_idle_microseconds: 1000",
            parameters=SNAPSHOTS % interval,
            backend="onnxruntime",
        )
        self.moves = self.batcher.moves
        self.moves.has_store = store

    def execute(self, flags: str = "", **fields: Any) -> Entry:
        entry = self.enqueue(1, flags, **fields)
        instance = self.sent().instance
        assert entry.member is not None
        states = {entry.member.slot_number: b"state"} if entry.member.returns_state else {}
        self.moves.end_batch([entry], [False], states)
        self.finish(entry, free=instance)
        return entry


def test_a_request_that_was_cancelled_while_it_ran_may_have_run() -> None:
    site = Site()
    site.execute("s")
    entry = site.enqueue(1)
    site.sent()
    site.batcher.end_entry(entry, 0)
    site.remove(gives_states=True)
    assert "i0 was lost" in site.refused(1).message


def test_an_instance_without_the_state_loses_the_sequence_with_one_error() -> None:
    site = Site(0)
    site.execute("s")
    site.remove(lost=False, gives_states=True)
    (slot_number,) = site.moves.slots_to_export("i0")
    site.moves.end_export("i0", slot_number, b"", "it was not exported")
    site.moves.end_export("i0", slot_number, b"state", "twice")
    assert "it was not exported" in site.refused(1).message
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        site.enqueue(1)


def test_an_idle_sequence_does_not_expire_while_its_state_moves() -> None:
    site = Site(0)
    site.execute("s")
    site.remove(lost=False, gives_states=True)
    assert site.batcher.expire_entries(2_000_000) == []
    assert len(site.batcher.sequences) == 1
    site.moves.end_export("i0", 1, b"state", "")
    assert site.moves.kept_bytes == len(b"state")
    # In the backlog it is idle, and its state goes with it.
    site.batcher.expire_entries(4_000_000)
    assert len(site.batcher.sequences) == site.moves.kept_bytes == 0


def test_the_next_request_takes_the_state_along_once() -> None:
    site = Site(0)
    assert site.moves.idle
    site.execute("s")
    site.remove(lost=False, gives_states=True)
    site.moves.end_export("i0", 1, b"state", "")
    assert not site.moves.idle
    site.add("i1")
    first, second = site.execute(), site.execute()
    assert first.member is not None
    assert first.member.restore == (b"state", ())
    assert second.member is not None
    assert second.member.restore is None
    assert site.moves.idle
    assert site.moves.kept_bytes == 0


def test_a_snapshot_that_comes_when_its_sequence_has_ended_is_dropped() -> None:
    site = Site(store=True)
    site.execute("s")
    waiting = site.enqueue(1)
    site.remove(gives_states=True)
    (sequence,) = site.moves.to_fetch
    assert sequence.transfer is Transfer.FETCH
    assert site.batcher.remove_entry(waiting)
    site.moves.end_fetch(sequence, b"state", "")
    assert site.moves.kept_bytes == 0


def test_the_first_snapshot_of_a_moved_state_frees_it_here() -> None:
    site = Site(3, store=True)
    site.execute("s")
    site.remove(lost=False, gives_states=True)
    site.moves.end_export("i0", 1, b"state", "")
    assert site.moves.kept_bytes == len(b"state")
    site.add("i1")
    entry = site.execute()
    assert entry.member is not None
    assert entry.member.returns_state
    assert site.moves.kept_bytes == 0


def test_requests_since_the_snapshot_are_bounded() -> None:
    site = Site(1000)
    entry = site.enqueue(1, "s")
    size = (1 << 20) + 1
    entry.request.payloads = [bytes(size)]
    site.sent()
    site.moves.end_batch([entry], [False], {})
    site.router.release_instance("i0")
    site.batcher.end_entry(entry, 0)
    assert site.moves.kept_bytes == size
    after = site.execute()
    assert after.member is not None
    assert after.member.returns_state
    assert site.moves.kept_bytes == len(b"state")


def test_a_request_that_is_given_up_ends_its_sequence() -> None:
    site = Site()
    site.execute("s")
    entry, waiting = site.enqueue(1), site.enqueue(1)
    site.sent()
    site.remove(gives_states=True)
    assert site.batcher.retry_error(entry, "i0 was lost") is None
    # Its retries are used up.
    site.batcher.end_entry(entry, 0)
    ((dropped, error),) = site.batcher.expire_entries(0)
    assert dropped is waiting
    assert "a request failed with its instance" in error.message


@pytest.mark.parametrize(("interval", "expected"), [(1, "1111"), (2, "0101"), (3, "0010")])
def test_every_so_many_requests_there_is_a_snapshot(interval: int, expected: str) -> None:
    site = Site(interval)
    members = [site.execute("s" if step == 0 else "").member for step in range(4)]
    assert "".join("01"[each is not None and each.returns_state] for each in members) == expected


def test_instances_that_cannot_be_given_states_lose_their_sequences() -> None:
    site = Site()
    site.execute("s")
    site.remove()
    assert "i0 was lost" in site.refused(1).message


@pytest.mark.parametrize("payload", [b"1234", SharedMemory("1.2.3", 0, 8)], ids=["large", "shared"])
def test_requests_that_cannot_be_kept_are_not_replayed(payload: object) -> None:
    site = Site(1000)
    site.moves.max_kept_bytes = 3
    site.execute("s", payloads=[payload])
    assert site.moves.kept_bytes == 0
    site.remove(gives_states=True)
    assert "i0 was lost" in site.refused(1).message


def test_the_end_of_a_sequence_runs_again_elsewhere() -> None:
    site = Site()
    site.execute("s")
    end = site.enqueue(1, "e")
    site.sent()
    site.remove(gives_states=True)
    assert site.batcher.retry_error(end, "i0 was lost") is None
    site.batcher.requeue([end])
    site.add("i1")
    assert site.sent().entries == [end]


def test_the_state_for_an_end_that_waits_is_exported() -> None:
    site = Site(0, strategy=OLDEST)
    site.execute("s")
    site.enqueue(1, "e")
    site.remove(lost=False, gives_states=True)
    assert site.moves.slots_to_export("i0") == [1]


def test_a_state_that_was_not_restored_yet_is_restored_elsewhere() -> None:
    """Its instance drains before it has had the sequence's next request."""
    site = Site(0)
    site.execute("s")
    site.remove(lost=False, gives_states=True)
    site.moves.end_export("i0", 1, b"state", "")
    waiting = site.enqueue(1)
    for instance in ("i1", "i2"):
        site.add(instance)
        if instance == "i1":
            site.remove("i1", lost=False, gives_states=True)
    assert site.sent().entries == [waiting]
    assert waiting.member is not None
    assert waiting.member.restore == (b"state", ())


def test_a_sequence_that_ends_while_its_state_moves_needs_it_no_more() -> None:
    site = Site(0)
    site.execute("s")
    waiting = site.enqueue(1)
    site.remove(lost=False, gives_states=True)
    assert site.moves.slots_to_export("i0") == [1]
    assert site.batcher.remove_entry(waiting)
    assert site.moves.slots_to_export("i0") == []
    site.moves.end_export("i0", 1, b"state", "")
    assert site.moves.kept_bytes == len(site.batcher.sequences) == 0


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_a_sequence_that_begins_anew_has_snapshots_of_its_own(strategy: str) -> None:
    site = Site(strategy=strategy)
    site.execute("s")
    waiting, again = site.enqueue(1), site.enqueue(1, "s")
    assert site.batcher.remove_entry(waiting)
    assert site.sent().entries == [again]
    site.moves.end_batch([again], [False], {1: b"new"})
    site.finish(again)
    site.remove(gives_states=True)
    site.add("i1")
    second = site.execute()
    assert second.member is not None
    assert second.member.restore is not None
    assert second.member.restore.state == b"new"
