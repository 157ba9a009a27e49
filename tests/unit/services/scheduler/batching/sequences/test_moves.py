"""States that move between instances: whatever happens, each response is that of the whole sequence
before it. Events are random, but the same each time; then rules one by one.
"""

from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.services.scheduler.batching.batcher import make_batcher
from nereid.services.scheduler.batching.sequences.controls import is_null
from nereid.services.scheduler.batching.sequences.recovery import Transfer
from nereid.services.scheduler.batching.sequences.sequence import Sequence
from nereid.services.scheduler.batching.sequences.sequence_batcher import SequenceBatcher
from nereid.services.scheduler.executors.router import Router
from nereid.services.scheduler.requests.entry import Batch, Entry
from tests.support.scheduler.samples import entry_of, model_of

STATES = 'state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 1 }'
STRATEGIES = ("direct { }", "oldest { max_candidate_sequences: 2 }")


def batcher_of(
    strategy: str, interval: int, *, store: bool, max_kept_bytes: int = 1 << 30
) -> tuple[SequenceBatcher, Router[Any]]:
    snapshots = (
        f'parameters {{ key: "sequence_snapshot_interval" value {{ string_value: "{interval}" }} }}'
    )
    config = model_of(
        f"max_batch_size: 2 sequence_batching {{ {strategy} {STATES}"
        f" max_sequence_idle_microseconds: 1000 }} {snapshots}",
        backend="onnxruntime",
    )
    router: Router[Any] = Router()
    batcher = make_batcher(config, router)
    assert isinstance(batcher, SequenceBatcher)
    batcher.moves.has_store = store
    batcher.moves.max_kept_bytes = max_kept_bytes
    return batcher, router


class FakeInstance:
    """Executes requests: a sequence's state are the numbers of its requests, as text."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: dict[int, str] = {}
        # The batch that it has, and what its execution leads to.
        self.batch: Batch | None = None
        self.befores: list[str] = []
        self.fails = self.applied = False

    def execute(self, batch: Batch, *, fails: bool, applied: bool) -> None:
        """fails: the responses are errors; not applied: and the states are as before."""
        self.batch, self.befores, self.fails, self.applied = batch, [], fails, applied
        for entry in filter(lambda each: not is_null(each), batch.entries):
            member = entry.member
            assert member is not None
            before = self.rows.get(member.slot_number, "missing")
            if member.restore is not None:
                before = member.restore.state.decode().removeprefix("state")
                for request in member.restore.requests:
                    parameters = request.parameters or {}
                    before = "" if parameters["sequence_start"] else before
                    before += f" {request.id}"
            if member.start:
                before = ""
            self.befores.append(before)
            self.rows[member.slot_number] = f"{before} {entry.request.id}" if applied else before
            if member.end:
                del self.rows[member.slot_number]

    def state(self, slot_number: int) -> bytes:
        """Never empty, unless there is none."""
        row = self.rows.get(slot_number)
        return b"" if row is None else b"state" + row.encode()


# --- one by one


class Site:
    """A batcher with one instance, and requests of sequence 1."""

    def __init__(self, interval: int = 1, *, store: bool = False, strategy: str = "direct { }"):
        self.batcher, self.router = batcher_of(strategy, interval, store=store)
        self.moves = self.batcher.moves
        self.instance = self.add()

    def add(self) -> FakeInstance:
        instance = FakeInstance(0)
        self.router.add_instance(instance)
        self.batcher.add_instance(instance)
        return instance

    def remove(self, *, lost: bool) -> None:
        self.router.remove_instance(self.instance)
        self.batcher.remove_instance(self.instance, "it died", lost=lost, gives_states=True)

    def enqueue(self, *, start: bool = False, end: bool = False) -> Entry:
        entry = entry_of()
        entry.request.parameters = {
            "sequence_id": 1,
            "sequence_start": start,
            "sequence_end": end,
        }
        self.batcher.enqueue(entry, 0)
        return entry

    def dispatch(self) -> Batch:
        batch = self.batcher.next_batch(0, self.router.count)
        assert batch is not None
        self.router.acquire(batch.instance)
        batch.instance.execute(batch, fails=False, applied=True)
        return batch

    def execute(self, *, start: bool = False, end: bool = False) -> Entry:
        entry = self.enqueue(start=start, end=end)
        batch = self.dispatch()
        member = entry.member
        assert member is not None
        states = {member.slot_number: b"state"} if member.returns_state else {}
        self.moves.end_batch([entry], [False], states)
        self.router.release_instance(batch.instance)
        self.batcher.end_entry(entry, 0)
        return entry

    def sequence(self) -> Sequence:
        return next(iter(self.batcher.sequences._open.values()))

    def refusal(self) -> str:
        with pytest.raises(Unavailable) as caught:
            self.enqueue()
        return caught.value.message


def test_a_request_that_was_cancelled_while_it_ran_may_have_run() -> None:
    site = Site()
    site.execute(start=True)
    entry = site.enqueue()
    site.dispatch()
    site.batcher.end_entry(entry, 0)
    site.remove(lost=True)
    assert "it died" in site.refusal()


def test_an_instance_without_the_state_loses_the_sequence_with_one_error() -> None:
    site = Site(0)
    site.execute(start=True)
    site.remove(lost=False)
    (slot_number,) = site.moves.slots_to_export(site.instance)
    site.moves.end_export(site.instance, slot_number, b"", "it was not exported")
    site.moves.end_export(site.instance, slot_number, b"state", "twice")
    assert "it was not exported" in site.refusal()
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        site.enqueue()


def test_an_idle_sequence_does_not_expire_while_its_state_moves() -> None:
    site = Site(0)
    site.execute(start=True)
    site.remove(lost=False)
    assert site.batcher.expire_entries(2_000_000) == []
    assert len(site.batcher.sequences) == 1
    site.moves.end_export(site.instance, 1, b"state", "")
    assert site.moves.kept_bytes == len(b"state")
    # In the backlog it is idle, and its state goes with it.
    site.batcher.expire_entries(4_000_000)
    assert len(site.batcher.sequences) == site.moves.kept_bytes == 0


def test_the_next_request_takes_the_state_along_once() -> None:
    site = Site(0)
    assert site.moves.idle
    site.execute(start=True)
    site.remove(lost=False)
    site.moves.end_export(site.instance, 1, b"state", "")
    assert not site.moves.idle
    site.add()
    first, second = site.execute(), site.execute()
    assert first.member is not None
    assert first.member.restore == (b"state", ())
    assert second.member is not None
    assert second.member.restore is None
    assert site.moves.idle
    assert site.moves.kept_bytes == 0


def test_a_snapshot_that_comes_when_its_sequence_has_ended_is_dropped() -> None:
    site = Site(store=True)
    site.execute(start=True)
    waiting = site.enqueue()
    site.remove(lost=True)
    (sequence,) = site.moves.to_fetch
    assert sequence.transfer is Transfer.FETCH
    assert site.batcher.remove_entry(waiting)
    site.moves.end_fetch(sequence, b"state", "")
    assert site.moves.kept_bytes == 0


def test_the_first_snapshot_of_a_moved_state_frees_it_here() -> None:
    site = Site(3, store=True)
    site.execute(start=True)
    site.remove(lost=False)
    site.moves.end_export(site.instance, 1, b"state", "")
    assert site.moves.kept_bytes == len(b"state")
    site.add()
    entry = site.execute()
    assert entry.member is not None
    assert entry.member.returns_state
    assert site.moves.kept_bytes == 0


def test_requests_since_the_snapshot_are_bounded() -> None:
    site = Site(1000)
    entry = site.enqueue(start=True)
    size = (1 << 20) + 1
    entry.request.payloads = [bytes(size)]
    site.dispatch()
    site.moves.end_batch([entry], [False], {})
    site.router.release_instance(site.instance)
    site.batcher.end_entry(entry, 0)
    assert site.moves.kept_bytes == size
    after = site.execute()
    assert after.member is not None
    assert after.member.returns_state
    assert site.moves.kept_bytes == len(b"state")


def test_a_request_that_is_given_up_ends_its_sequence() -> None:
    site = Site()
    site.execute(start=True)
    entry, waiting = site.enqueue(), site.enqueue()
    site.dispatch()
    site.remove(lost=True)
    assert site.batcher.retry_error(entry) is None
    # Its retries are used up.
    site.batcher.end_entry(entry, 0)
    ((dropped, error),) = site.batcher.expire_entries(0)
    assert dropped is waiting
    assert "a request failed with its instance" in error.message


@pytest.mark.parametrize(("interval", "expected"), [(1, "1111"), (2, "0101"), (3, "0010")])
def test_every_so_many_requests_there_is_a_snapshot(interval: int, expected: str) -> None:
    site = Site(interval)
    members = [site.execute(start=step == 0).member for step in range(4)]
    assert "".join("01"[each is not None and each.returns_state] for each in members) == expected


def test_instances_that_cannot_be_given_states_lose_their_sequences() -> None:
    site = Site()
    site.execute(start=True)
    site.router.remove_instance(site.instance)
    site.batcher.remove_instance(site.instance, "it died", lost=True)
    assert "it died" in site.refusal()
