"""A model version under events that hypothesis makes: each request gets one last response, and with
preserve_ordering they come in the order of the requests.

Times are left to the batchers' own tests: nothing here expires, and no batch waits for others.
"""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nereid.core.errors import Internal, ProtocolError, Unavailable
from nereid.core.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.pace import Pace
from nereid.services.scheduler.executors.remote_instance import RemoteInstance
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.models.version_context import VersionContext
from nereid.services.scheduler.models.waiting_batches import lets_batches_wait
from nereid.services.scheduler.requests.entry import Entry, RequestState
from tests.support.scheduler.fake_executors import Stream, turn
from tests.support.scheduler.samples import model_of

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: -1 }
output { name: "O" data_type: TYPE_UINT8 dims: -1 }
"""
ORDERED = "dynamic_batching { preserve_ordering: true }"
MODELS = (
    "",
    "max_batch_size: 4",
    "max_batch_size: 4 dynamic_batching { }",
    ORDERED,
    f"max_batch_size: 4 {ORDERED}",
    f"max_batch_size: 4 {ORDERED} model_transaction_policy {{ decoupled: true }}",
    "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
)
MAX_RETRIES = 2


class EagerPace(Pace):
    """Of an instance that is always about to end; no real time makes its batches overdue."""

    def __init__(self) -> None:
        super().__init__()
        self.patience_ns = 1 << 60

    def record_batch(self, execution_ns: int, total_ns: int | None) -> None:
        pass

    def may_send(self, elapsed_ns: int) -> bool:
        return True


class Requests(RuleBasedStateMachine):
    """One model version, whose instances' streams are lists."""

    @initialize(text=st.sampled_from(MODELS), instances=st.integers(0, 2), waits=st.booleans())
    def start(self, text: str, instances: int, waits: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.numbers = count(1)
        self.streams: dict[RemoteInstance, Stream] = {}
        self.entries: dict[int, Entry] = {}
        self.cancelled: set[int] = set()
        # The requests in the order of their last responses; and of their first ones.
        self.ended: list[int] = []
        self.responded: list[int] = []
        self.surplus: list[InferResponse] = []
        # By instance: the numbers and members of its batches, in the order they were sent.
        self.open: dict[RemoteInstance, list[tuple[int, list[int]]]] = {}
        # Members of waiting batches that were asked back, by the batch's number, until it is known
        # whether they are.
        self.asked: dict[RemoteInstance, list[int]] = {}
        self.loop.run_until_complete(self._start(text, instances, waits=waits))

    async def _start(self, text: str, instances: int, *, waits: bool) -> None:
        config = model_of(text + TENSORS)
        self.waits = waits and lets_batches_wait(config)
        limits = QueueLimits(max_retries=MAX_RETRIES, max_queue_size=12)
        self.model = ModelVersion(config, 1, VersionContext(limits))
        self.batched = config.max_batch_size > 0
        self.priorities = config.batching is not None and config.batching.priority_levels > 0
        self.ordered = config.batching is not None and config.batching.preserve_ordering
        for _ in range(instances):
            self._add_instance()
        await turn()

    def _settle(self) -> None:
        self.loop.run_until_complete(turn())
        waiting = []
        for instance, stream in self.streams.items():
            while stream.sent:
                batch = stream.sent.pop(0)
                self._check_batch(instance, batch)
                if len(self.open[instance]) > 1:
                    waiting.append(instance)
        # Batches wait only where no instance is free.
        assert not waiting or all(self.open.values())

    def _check_batch(self, instance: RemoteInstance, batch: pb.Batch) -> None:
        """An instance was sent a batch."""
        members = [member.id for member in batch.members]
        at_instance = self.open[instance]
        assert len(at_instance) <= self.waits
        executing = [
            each for batches in self.open.values() for _, those in batches for each in those
        ]
        for number in members:
            assert number not in self.ended
            assert number not in self.cancelled
            assert number not in executing
            # How often it was lost while it was executing, not while it waited.
            assert self.entries[number].retries <= MAX_RETRIES
        at_instance.append((batch.id, members))

    # ---- events

    @rule(
        sizes=st.lists(st.sampled_from([1, 1, 2]), min_size=1, max_size=6),
        priority=st.integers(0, 2),
        at_once=st.booleans(),
    )
    def submit(self, sizes: list[int], priority: int, at_once: bool) -> None:
        async def submit_all() -> None:
            for size in sizes:
                self._submit(size, priority, at_once=at_once)

        self.loop.run_until_complete(submit_all())
        self._settle()

    def _submit(self, size: int, priority: int, *, at_once: bool) -> None:
        number = next(self.numbers)
        head = kserve_pb2.ModelInferRequest(model_name="m")
        head.inputs.add(name="I", datatype="UINT8", shape=[1, size] if self.batched else [size])
        request = InferRequest(
            number, head.SerializeToString(), [bytes(size)], priority=priority, accepts_many=True
        )
        try:
            entry = self.model.submit(request, self._on_response, at_once=at_once)
        except Unavailable:
            assert self.model.pending >= 12
        else:
            assert number not in self.ended
            self.entries[number] = entry

    def _on_response(self, response: InferResponse) -> None:
        number = response.id
        if number in self.ended or (number in self.cancelled and not response.more):
            # What is raised here is logged, and no more.
            self.surplus.append(response)
        if number not in self.responded:
            self.responded.append(number)
        if not response.more:
            self.ended.append(number)

    @precondition(lambda self: self._waiting())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self._waiting()))
        if self.entries[number].state is not RequestState.RESPONDED:
            # Else its response is held back for the order's sake.
            self.cancelled.add(number)
        self.loop.run_until_complete(self._call(self.entries[number].cancel))
        self._settle()

    @rule()
    def add_instance(self) -> None:
        if len(self.streams) < 3:
            self.loop.run_until_complete(self._call(self._add_instance))
            self._settle()

    def _add_instance(self) -> None:
        stream = Stream()
        instance = RemoteInstance(1, "i", "executor", stream)
        self.streams[instance] = stream
        self.open[instance] = []
        self.asked[instance] = []
        instance.accepts_waiting = self.waits
        instance.pace = EagerPace()
        instance.request_withdrawal = self.asked[instance].append
        self.model.add_instance(instance)

    @precondition(lambda self: self._busy())
    @rule(
        data=st.data(),
        fails=st.sets(st.integers(0, 3)),
        malformed=st.sampled_from([False] * 5 + [True]),
    )
    def execute(self, data: st.DataObject, fails: set[int], malformed: bool) -> None:
        """An instance responds to its batch."""
        instance = data.draw(st.sampled_from(self._busy()))
        self._execute(instance, fails, malformed=malformed)

    def _execute(self, instance: RemoteInstance, fails: set[int], *, malformed: bool) -> None:
        number, members = self.open[instance].pop(0)
        assert instance.batches.first is not None
        assert instance.batches.first.id == number
        if self.waits and len(self.open[instance]) == 0:
            assert instance.batches.waiting is None
        reply = pb.Executed(id=number)
        if self.model.decoupled:
            reply.partial = True
        for place in range(len(members)):
            response = reply.responses.add(head=b"")
            response.id = place if self.model.decoupled else 0
            if place in fails:
                response.error.code, response.error.message = Internal.code, "no"
        message = b"\xff" if malformed else reply.SerializeToString()
        if malformed:
            with pytest.raises(ProtocolError):
                self.loop.run_until_complete(self._call(self.model.on_reply, instance, message))
            self._lose(instance, begun=True)
            return
        self.loop.run_until_complete(self._call(self.model.on_reply, instance, message))
        self._settle()

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), begun=st.booleans())
    def lose_instance(self, data: st.DataObject, begun: bool) -> None:
        self._lose(data.draw(st.sampled_from([*self.streams])), begun=begun)

    def _lose(self, instance: RemoteInstance, *, begun: bool) -> None:
        del self.streams[instance], self.open[instance], self.asked[instance]
        self.loop.run_until_complete(
            self._call(lambda: self.model.lose_instance(instance, "it died", begun=begun))
        )
        self._settle()

    @precondition(lambda self: any(instance.batches.waiting for instance in self.streams))
    @rule(data=st.data())
    def ask_back(self, data: st.DataObject) -> None:
        """A waiting batch is overdue."""
        waiting = [instance for instance in self.streams if instance.batches.waiting is not None]
        data.draw(st.sampled_from(waiting)).withdraw_waiting()

    @precondition(lambda self: any(self.asked.values()))
    @rule(data=st.data(), overtaken=st.booleans())
    def give_back(self, data: st.DataObject, overtaken: bool) -> None:
        """An instance gives a batch back, unless it has begun.

        overtaken: the response to the batch before comes first.
        """
        instance = data.draw(st.sampled_from([each for each, asked in self.asked.items() if asked]))
        number = self.asked[instance].pop()
        open_numbers = [each for each, _ in self.open[instance]]
        if number not in open_numbers[-1:]:
            return  # executed meanwhile
        if overtaken and len(open_numbers) > 1:
            self._execute(instance, set(), malformed=False)
        self.open[instance].remove(next(it for it in self.open[instance] if it[0] == number))
        self.loop.run_until_complete(
            self._call(lambda: self.model.batch_withdrawn(instance, number))
        )
        self._settle()

    @precondition(lambda self: self.streams and self.waits)
    @rule(data=st.data())
    def retire_instance(self, data: st.DataObject) -> None:
        """It finishes what it has."""
        instance = data.draw(st.sampled_from([*self.streams]))
        self.loop.run_until_complete(self._call(lambda: self.model.retire_instance(instance)))
        while self.open[instance]:
            self._execute(instance, set(), malformed=False)
        assert not instance.at_work
        del self.streams[instance], self.open[instance], self.asked[instance]

    async def _call(self, function: object, *arguments: object) -> None:
        assert callable(function)
        function(*arguments)
        await turn()

    # ---- what must hold

    @invariant()
    def none_is_lost(self) -> None:
        if not hasattr(self, "model"):
            return
        assert not self.surplus
        if self.ordered:
            assert self.responded == sorted(self.responded)
            assert self.ended == sorted(self.ended)
        if self.streams and all(not members for members in self.open.values()):
            # With an idle instance nothing waits.
            assert not self._waiting()

    def teardown(self) -> None:
        """With an instance, everything ends."""
        if not hasattr(self, "model"):
            return
        if not self.streams:
            self.loop.run_until_complete(self._call(self._add_instance))
            self._settle()
        for _ in range(1000):
            busy = self._busy()
            if not busy:
                break
            self._execute(busy[0], set(), malformed=False)
        assert not self._waiting()
        self.loop.run_until_complete(asyncio.wait_for(self.model.idle(), 1))
        self.loop.run_until_complete(self._call(self.model.close))
        self.loop.close()

    def _waiting(self) -> list[int]:
        """The requests without a last response."""
        done = self.cancelled.union(self.ended)
        return [number for number in self.entries if number not in done]

    def _busy(self) -> list[RemoteInstance]:
        return [instance for instance, members in self.open.items() if members]


Requests.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestRequests = pytest.mark.slow(Requests.TestCase)
