"""States that move between instances: whatever happens, each response is that of the whole sequence
before it. Events are random, but the same each time; then rules one by one.
"""

from __future__ import annotations

import random
from itertools import count
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
from nereid.shm.reference import SharedMemory
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


class World:
    """Random events. No response is to a request whose sequence's earlier ones are not all in its
    state.
    """

    def __init__(
        self, seed: int, strategy: str, interval: int, *, store: bool, max_kept_bytes: int
    ) -> None:
        self.random = random.Random(seed)
        self.batcher, self.router = batcher_of(
            strategy, interval, store=store, max_kept_bytes=max_kept_bytes
        )
        self.moves = self.batcher.moves
        self.now_ns = 0
        self.numbers = count()
        self.store: dict[int, tuple[int, bytes]] = {}
        self.draining: list[FakeInstance] = []
        # Without a response; a dict has an order.
        self.inside: dict[Entry, None] = {}
        self.cancelled: set[Entry] = set()
        # What each sequence's state should be.
        self.done: dict[Sequence, str] = {}
        self.responses = self.errors = 0
        self.events = {
            self.enqueue: 12,
            self.dispatch: 6,
            self.complete: 6,
            self.serve: 2,
            self.add_instance: 1,
            self.drain: 1,
            self.export: 4,
            self.lose: 1,
            self.fetch: 3,
            self.cancel: 1,
            self.expire: 1,
        }

    def run(self, steps: int) -> None:
        events, weights = list(self.events), list(self.events.values())
        self.add_instance()
        for _ in range(steps):
            self.random.choices(events, weights)[0]()
            self.check_kept_bytes()
        self.finish()

    # ---- requests

    def enqueue(self) -> None:
        for _ in range(6):
            flags = self.random.choice(["s", "", "", "", "", "", "", "e"])
            self.enqueue_one(self.random.randint(1, 6), flags)

    def enqueue_one(self, which: int, flags: str) -> None:
        entry = entry_of()
        entry.request.parameters = {
            "sequence_id": which,
            "sequence_start": flags == "s",
            "sequence_end": flags == "e",
        }
        shared = self.random.random() < 0.1
        entry.request.payloads = [SharedMemory("1.2.3", 0, 8) if shared else b"12345678"]
        if self.random.random() < 0.05:
            # Of another shape: in a batch of its own.
            entry.key = "another"
        try:
            self.batcher.enqueue(entry, self.now_ns)
        except (InvalidArgument, Unavailable) as error:
            assert flags != "s"
            self.errors += isinstance(error, Unavailable)
        else:
            self.inside[entry] = None

    def cancel(self) -> None:
        candidates = [each for each in self.inside if each.holder is None]
        if not candidates or self.random.random() < 0.5:
            candidates = list(self.inside)
        if candidates:
            entry = self.random.choice(candidates)
            if not self.batcher.remove_entry(entry):
                self.cancelled.add(entry)
            self._end(entry)

    def expire(self) -> None:
        self.now_ns += self.random.choice([20_000, 20_000, 1_500_000])
        for entry, _ in self.batcher.expire_entries(self.now_ns):
            self.errors += 1
            self._end(entry)

    def _end(self, entry: Entry) -> None:
        self.batcher.end_entry(entry, self.now_ns)
        self.inside.pop(entry, None)

    # ---- execution

    @property
    def busy(self) -> list[FakeInstance]:
        return [each for each in self.instances if each.batch is not None]

    @property
    def instances(self) -> list[FakeInstance]:
        return sorted([*self.router, *self.draining], key=lambda each: each.number)

    def dispatch(self) -> None:
        while batch := self.batcher.next_batch(self.now_ns, self.router.count):
            self.router.acquire(batch.instance)
            fails = self.random.random() < 0.1
            applied = not fails or self.random.random() < 0.5
            batch.instance.execute(batch, fails=fails, applied=applied)

    def complete(self) -> None:
        if self.busy:
            self._complete(self.random.choice(self.busy))

    def serve(self) -> None:
        """Execute all that can be executed, but for the last batches."""
        for _ in range(4):
            for instance in self.busy:
                self._complete(instance)
            self.dispatch()

    def _complete(self, instance: FakeInstance) -> None:
        batch, befores = instance.batch, instance.befores
        fails, applied = instance.fails, instance.applied
        assert batch is not None
        entries = [each for each in batch.entries if not is_null(each)]
        wanted = [each.member for each in entries if each.member and each.member.returns_state]
        # Some did not fit into the frame.
        states = {
            each.slot_number: instance.state(each.slot_number)
            for each in wanted
            if self.random.random() < 0.9
        }
        instance.batch = None
        self.router.release_instance(instance)
        if self.random.random() < 0.5:
            # Before its responses are looked at, it may get its next batch.
            self.dispatch()
        failed = [fails] * len(entries)
        for recovery, state in self.moves.end_batch(entries, failed, states):
            assert self.moves.has_store
            self.store[recovery.number] = (recovery.base, state)
        for entry, before in zip(entries, befores, strict=True):
            assert entry.member is not None
            sequence = entry.member.sequence
            assert before == ("" if entry.member.start else self.done[sequence])
            self.done[sequence] = f"{before} {entry.request.id}" if applied else before
            self.responses += 1
            self._end(entry)

    # ---- instances

    def add_instance(self) -> None:
        if self.router.count < 3:
            instance = FakeInstance(next(self.numbers))
            self.router.add_instance(instance)
            self.batcher.add_instance(instance)

    def drain(self) -> None:
        if self.router.count:
            instance = self.random.choice(sorted(self.router, key=lambda each: each.number))
            self.router.remove_instance(instance)
            self.batcher.remove_instance(instance, "left", lost=False, gives_states=True)
            self.draining.append(instance)

    def export(self) -> None:
        idle = [each for each in self.draining if each.batch is None]
        if not idle:
            return
        slots = self.moves.slots_to_export(idle[0])
        for slot_number in slots[:1] if self.random.random() < 0.5 else slots:
            state = idle[0].state(slot_number)
            assert state
            self.moves.end_export(idle[0], slot_number, state, "it was not exported")
        if not self.moves.slots_to_export(idle[0]):
            self.draining.remove(idle[0])

    def lose(self) -> None:
        if not self.instances:
            return
        instance = self.random.choice(self.instances)
        self.router.remove_instance(instance)
        self.draining = [each for each in self.draining if each is not instance]
        self.batcher.remove_instance(instance, "was lost", lost=True, gives_states=True)
        retried = self.random.random() < 0.9
        again = []
        for entry in instance.batch.entries if instance.batch else ():
            if is_null(entry):
                continue
            if entry in self.cancelled:
                # Its client must not believe that it has run, nor that it has not.
                assert entry.member is not None
                self.done[entry.member.sequence] = "unknown"
                continue
            if retried and self.batcher.retry_error(entry) is None:
                again.append(entry)
            else:
                self.errors += 1
                self._end(entry)
        self.batcher.requeue(again)

    def fetch(self) -> None:
        sequences, self.moves.to_fetch = self.moves.to_fetch, []
        for sequence in sequences:
            if sequence.recovery is None:
                self.moves.end_fetch(sequence, b"state", "too late")
                continue
            base, state = self.store[sequence.recovery.number]
            assert base == sequence.recovery.base
            found = self.random.random() < 0.9
            self.moves.end_fetch(sequence, state if found else None, "no snapshot")

    # ---- checks

    def check_kept_bytes(self) -> None:
        sequences = {each.member.sequence for each in self.inside if each.member}
        sequences |= set(self.batcher.sequences._open.values())
        recoveries = [each.recovery for each in sequences if each.recovery is not None]
        assert self.moves.kept_bytes == sum(each.kept_bytes for each in recoveries)

    def finish(self) -> None:
        """All that is inside runs or fails in the end."""
        self.add_instance()
        for _ in range(200):
            if not self.inside:
                return
            self.expire()
            self.serve()
            self.export()
            self.fetch()
            for which in range(1, 7):
                self.enqueue_one(which, "e")
        raise AssertionError(f"{len(self.inside)} requests never end")


SEEDS = [pytest.param(seed, marks=pytest.mark.nightly if seed > 2 else ()) for seed in range(60)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("interval", [0, 1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_response_lacks_a_step(strategy: str, interval: int, store: bool, seed: int) -> None:
    max_kept_bytes = 100 if seed % 3 == 2 else 1 << 20
    world = World(seed, strategy, interval, store=store, max_kept_bytes=max_kept_bytes)
    world.run(300)
    assert world.responses > 100
    assert world.errors


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


def test_a_sequence_that_ends_while_its_state_moves_needs_it_no_more() -> None:
    site = Site(0)
    site.execute(start=True)
    waiting = site.enqueue()
    site.remove(lost=False)
    assert site.moves.slots_to_export(site.instance) == [1]
    assert site.batcher.remove_entry(waiting)
    assert site.moves.slots_to_export(site.instance) == []
    site.moves.end_export(site.instance, 1, b"state", "")
    assert site.moves.kept_bytes == 0
    assert len(site.batcher.sequences) == 0


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


def test_a_start_behind_a_cancelled_request_does_not_wait_for_a_state() -> None:
    """What moves is of the attempt before: it comes too late for the new one."""
    site = Site(0)
    site.execute(start=True)
    waiting, again = site.enqueue(), site.enqueue(start=True)
    site.remove(lost=False)
    assert site.moves.slots_to_export(site.instance) == [1]
    assert site.batcher.remove_entry(waiting)
    assert site.moves.slots_to_export(site.instance) == []
    site.moves.end_export(site.instance, 1, b"state", "")
    assert site.batcher.expire_entries(0) == []
    site.add()
    assert site.dispatch().entries == [again]
    assert again.member is not None
    assert again.member.restore is None
    assert site.moves.kept_bytes == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_that_begins_anew_has_snapshots_of_its_own(strategy: str) -> None:
    site = Site(1, strategy=strategy)
    site.execute(start=True)
    waiting = site.enqueue()
    again = site.enqueue(start=True)
    assert site.batcher.remove_entry(waiting)
    batch = site.dispatch()
    assert batch.entries == [again]
    assert again.member is not None
    site.moves.end_batch([again], [False], {again.member.slot_number: b"new"})
    site.router.release_instance(batch.instance)
    site.batcher.end_entry(again, 0)
    site.remove(lost=True)
    second = site.enqueue()
    site.add()
    assert site.dispatch().entries == [second]
    assert second.member is not None
    assert second.member.restore is not None
    assert second.member.restore.state == b"new"
