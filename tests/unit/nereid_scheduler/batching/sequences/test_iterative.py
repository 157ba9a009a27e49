"""Iterative sequences: requests that instances want again."""

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nereid.core.errors import Cancelled, DeadlineExceeded, InvalidArgument, Unavailable
from nereid_scheduler.batching.sequences.controls import is_null
from nereid_scheduler.batching.sequences.iterative import ITERATION
from nereid_scheduler.core.requests.entry import Entry, RequestState
from tests.support.scheduler.sequence_site import DIRECT, OLDEST, SequenceSite

CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] } }
control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: %s } }
"""


class Site(SequenceSite):
    def __init__(self, strategy: str = DIRECT, *, slots: int = 2, more: str = "") -> None:
        strategy = strategy.replace(": 2", f": {slots}")
        rules = "iterative_sequence: true max_sequence_idle_microseconds: 100"
        super().__init__(f"{rules} {strategy} {more}", max_batch_size=slots)

    def entries(self, instance: str = "i0") -> list[Entry]:
        """The next batch, which is for this instance, without its null requests."""
        batch = self.batch()
        assert batch is None or batch.instance == instance
        return [entry for entry in batch.entries if not is_null(entry)] if batch else []

    def reschedule(self, *entries: Entry, bound: bool = False, free: str = "i0") -> None:
        for entry in entries:
            self.batcher.reschedule(entry, self.now_ns, bound=bound)
        if free:
            self.router.release_instance(free)

    def texts(self) -> list[tuple[Entry, str]]:
        return [(entry, error.message) for entry, error in self.expire()]


def seen(entry: Entry) -> tuple[Any, ...]:
    """What its model sees: the correlation id, START, END, and the iteration."""
    parameters = entry.request.parameters
    assert parameters is not None
    names = ("sequence_id", "sequence_start", "sequence_end", ITERATION)
    return tuple(parameters[name] for name in names)


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
class TestBoth:
    def test_a_request_without_an_id_is_a_sequence_of_its_own(self, strategy: str) -> None:
        site = Site(strategy, more=CONTROLS % "TYPE_UINT32")
        entry = site.enqueue()
        entry.request.payloads[:0] = [b"input"]
        payloads = []
        for iteration in range(3):
            assert site.entries() == [entry]
            assert seen(entry) == (1, iteration == 0, False, f"1.{iteration}")
            payloads.append(list(entry.request.payloads))
            if iteration < 2:
                site.reschedule(entry)
                assert site.batcher.pending == 1
        one, zero = b"\1\0\0\0", b"\0\0\0\0"
        assert payloads == [
            [b"input", one, zero, one],
            [b"input", zero, zero, one],
            [b"input", zero, zero, one],
        ]
        site.finish(entry)
        assert (len(site.batcher.sequences), site.batcher.pending) == (0, 0)

    def test_ids_are_texts_where_the_model_has_these(self, strategy: str) -> None:
        site = Site(strategy, more=CONTROLS % "TYPE_STRING")
        site.enqueue("1", "s")
        assert seen(site.enqueue())[:2] == ("2", True)

    def test_the_end_of_a_clients_sequence_keeps_its_slot_while_it_is_rescheduled(
        self, strategy: str
    ) -> None:
        site = Site(strategy, slots=1)
        entry = site.enqueue(7, "se")
        other = site.enqueue()
        for iteration in range(3):
            assert site.entries() == [entry]
            assert seen(entry)[:3] == (7, iteration == 0, True)
            site.reschedule(entry)
        assert site.entries() == [entry]
        site.finish(entry)
        assert site.entries() == [other]

    def test_a_sequence_goes_on_with_what_waits_and_is_over_then(self, strategy: str) -> None:
        site = Site(strategy)
        first = site.enqueue(7, "s")
        assert site.entries() == [first]
        second = site.enqueue(7)
        site.reschedule(first)
        assert site.entries() == [first]
        site.finish(first)
        assert site.entries() == [second]
        assert seen(second)[:2] == (7, False)
        site.finish(second)
        with pytest.raises(InvalidArgument, match="START flag"):
            site.enqueue(7)

    def test_cancelling_another_request_ends_the_sequence(self, strategy: str) -> None:
        site = Site(strategy)
        first = site.enqueue(7, "s")
        assert site.entries() == [first]
        second = site.enqueue(7)
        assert site.batcher.remove_entry(second)
        site.reschedule(first)
        ((failed, text),) = site.texts()
        assert failed is first
        assert "is lost: another of its requests was cancelled" in text
        assert site.entries() == []

    def test_a_start_behind_a_cancelled_request_begins_anew(self, strategy: str) -> None:
        site = Site(strategy)
        first = site.enqueue(7, "s")
        assert site.entries() == [first]
        second, again = site.enqueue(7), site.enqueue(7, "s")
        assert site.batcher.remove_entry(second)
        # Its next iteration is of the attempt that has ended, and no START.
        site.reschedule(first)
        ((failed, text),) = site.texts()
        assert failed is first
        assert "is lost: another of its requests was cancelled" in text
        assert site.entries() == [again]
        assert seen(again)[:2] == (7, True)
        site.finish(again)
        assert (len(site.batcher.sequences), site.batcher.pending) == (0, 0)

    def test_a_request_without_a_response_begins_anew_elsewhere(self, strategy: str) -> None:
        site = Site(strategy, more=CONTROLS % "TYPE_UINT32")
        executing, waiting = site.enqueue(), site.enqueue()
        assert {*site.entries()} == {executing, waiting}
        site.reschedule(executing, waiting)
        assert {*site.entries()} == {executing, waiting}
        site.batcher.reschedule(waiting, 0, bound=False)
        site.remove("i0")
        assert site.batcher.retry_error(executing, "i0 was lost") is None
        site.batcher.requeue([executing])
        site.add("i1")
        assert {*site.entries("i1")} == {executing, waiting}
        for entry in (executing, waiting):
            assert seen(entry)[1] is True
            assert seen(entry)[3].endswith(".0")
            assert entry.request.payloads[0] == b"\1\0\0\0"

    def test_a_request_with_a_response_fails_with_its_instance(self, strategy: str) -> None:
        site = Site(strategy)
        executing, waiting = site.enqueue(), site.enqueue()
        site.entries()
        site.reschedule(executing, waiting, bound=True)
        assert {*site.entries()} == {executing, waiting}
        site.batcher.reschedule(waiting, 0, bound=True)
        site.remove("i0")
        error = site.batcher.retry_error(executing, "i0 was lost")
        assert isinstance(error, Unavailable)
        lost = "the state of a request to model 'm' is lost: i0 was lost; send the request again"
        assert error.message == lost
        site.finish(executing, free="")
        assert site.texts() == [(waiting, lost)]
        assert len(site.batcher.sequences) == 0

    @pytest.mark.parametrize("bound", [False, True])
    def test_an_instance_retires_while_it_executes(self, strategy: str, bound: bool) -> None:
        site = Site(strategy)
        entry = site.enqueue(7, "s")
        assert site.entries() == [entry]
        site.remove("i0", lost=False)
        site.reschedule(entry, bound=bound, free="")
        site.add("i1")
        if bound:
            ((failed, text),) = site.texts()
            assert failed is entry
            assert "the state of sequence 7 of model 'm' is lost: i0 was lost; begin" in text
            assert site.entries("i1") == []
        else:
            assert site.entries("i1") == [entry]
            assert seen(entry)[1] is True

    def test_a_later_request_of_a_sequence_does_not_begin_elsewhere(self, strategy: str) -> None:
        site = Site(strategy)
        first = site.enqueue(7, "s")
        assert site.entries() == [first]
        second = site.enqueue(7)
        site.finish(first)
        assert site.entries() == [second]
        site.remove("i0")
        assert isinstance(site.batcher.retry_error(second, "i0 was lost"), Unavailable)


class Loops(RuleBasedStateMachine):
    """Every request ends once, and is in one place at a time; slots are not shared."""

    @initialize(strategy=st.sampled_from([DIRECT, OLDEST]), slots=st.integers(1, 3))
    def start(self, strategy: str, slots: int) -> None:
        self.site = Site(strategy, slots=slots)
        self.names = count(1)
        self.instances = {"i0"}
        self.waiting: set[Entry] = set()
        self.executing: dict[str, list[Entry]] = {}
        self.iterations: dict[Entry, int] = {}
        self.bound: set[Entry] = set()
        # Instances that are to go, with the sequences that they had then.
        self.retired: dict[str, set[Any]] = {}

    @rule(which=st.sampled_from([0, 0, 0, 5]), deadline=st.booleans())
    def enqueue(self, which: int, deadline: bool) -> None:
        deadline_ns = self.site.now_ns + 50 if deadline else None
        entry = self.site.enqueue(which, "s", deadline_ns=deadline_ns)
        self.waiting.add(entry)
        self.iterations[entry] = 0

    @rule()
    def dispatch(self) -> None:
        site = self.site
        while (batch := site.batcher.next_batch(site.now_ns, 1)) is not None:
            site.router.acquire(batch.instance)
            assert batch.instance not in self.executing
            real = [entry for entry in batch.entries if not is_null(entry)]
            sequences = {entry.member.sequence for entry in real if entry.member}
            assert sequences <= self.retired.get(batch.instance, sequences)
            slots = [entry.member.slot_number for entry in real if entry.member]
            assert len({*slots}) == len(slots)
            for entry in real:
                self.waiting.remove(entry)
                # START in the first iteration alone.
                assert seen(entry)[1] is (self.iterations[entry] == 0)
            self.executing[batch.instance] = real

    @precondition(lambda self: self.executing)
    @rule(data=st.data())
    def execute(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(sorted(self.executing)))
        for entry in self.executing.pop(instance):
            if entry.state is RequestState.RESPONDED:
                continue
            if data.draw(st.booleans()):
                bound = entry in self.bound or data.draw(st.booleans())
                if bound:
                    self.bound.add(entry)
                self._again(entry, bound=bound)
            else:
                self.site.finish(entry, free="")
        if instance in self.instances:
            self.site.router.release_instance(instance)

    def _again(self, entry: Entry, *, bound: bool) -> None:
        self.site.batcher.reschedule(entry, self.site.now_ns, bound=bound)
        self.iterations[entry] = int(str(seen(entry)[3]).partition(".")[2])
        self.waiting.add(entry)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.waiting, key=lambda each: each.request.id)))
        assert self.site.batcher.remove_entry(entry)
        self.waiting.remove(entry)
        self._responded(entry)

    @precondition(lambda self: any(self.executing.values()))
    @rule(data=st.data())
    def cancel_executing(self, data: st.DataObject) -> None:
        entries = [entry for batch in self.executing.values() for entry in batch]
        entry = data.draw(st.sampled_from(entries))
        if entry.state is not RequestState.RESPONDED:
            self.site.finish(entry, free="")

    @rule(passed=st.integers(1, 60))
    def expire(self, passed: int) -> None:
        self.site.now_ns += passed
        for entry, error in self.site.batcher.expire_entries(self.site.now_ns):
            assert isinstance(error, DeadlineExceeded | Cancelled | Unavailable)
            self.waiting.remove(entry)
            self._responded(entry)

    def _responded(self, entry: Entry) -> None:
        entry.state = RequestState.RESPONDED
        self.site.batcher.end_entry(entry, 0)

    @rule()
    def add_instance(self) -> None:
        name = f"i{next(self.names)}"
        self.instances.add(name)
        self.site.add(name)

    @precondition(lambda self: self.instances)
    @rule(data=st.data())
    def retire_instance(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.instances)))
        if name not in self.retired:
            row = self.site.batcher.sequences.slots.row_of(name)
            assert row is not None
            self.retired[name] = {*row.sequences()}
            self.site.batcher.retire_instance(name)

    @invariant()
    def nothing_keeps_a_retired_instance_but_its_sequences(self) -> None:
        for name in list(getattr(self, "retired", ())):
            if not self.site.batcher.has_sequences(name):
                # A sequence is there until its last response: nothing executes any more.
                assert all(
                    entry.state is RequestState.RESPONDED for entry in self.executing.get(name, ())
                )
                self.instances.remove(name)
                del self.retired[name]
                self.site.remove(name, lost=False)

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), lost=st.booleans())
    def remove_instance(self, data: st.DataObject, lost: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.instances)))
        self.instances.remove(name)
        self.retired.pop(name, None)
        self.site.remove(name, lost=lost)
        for entry in self.waiting:
            self.iterations[entry] = int(str(seen(entry)[3]).partition(".")[2])
        if not lost:
            return
        again = []
        for entry in self.executing.pop(name, []):
            if entry.state is RequestState.RESPONDED:
                continue
            error = self.site.batcher.retry_error(entry, "i0 was lost")
            assert (error is None) is (entry not in self.bound)
            if error is None:
                again.append(entry)
            else:
                self._responded(entry)
        self.site.batcher.requeue(again)
        for entry in again:
            self.iterations[entry] = 0
            self.waiting.add(entry)

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        site = self.site
        if not self.instances - self.retired.keys():
            self.add_instance()
        for _ in range(1000):
            self.dispatch()
            for instance in list(self.executing):
                for entry in self.executing.pop(instance):
                    if entry.state is not RequestState.RESPONDED:
                        site.finish(entry, free="")
                if instance in self.instances:
                    site.router.release_instance(instance)
            self.expire(1)
            if not self.waiting:
                break
        assert not self.waiting
        assert site.batcher.pending == 0
        assert not site.batcher.sequences.backlog
        assert len(site.batcher.sequences) == 0


TestLoops = Loops.TestCase
TestLoops.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
