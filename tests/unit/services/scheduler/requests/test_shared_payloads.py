"""References that pass through the scheduler, and segments on their way back to their owners."""

from __future__ import annotations

import os
from typing import Any

from nereid.core.errors import Unavailable
from nereid.core.messages import Answer, InferRequest, Release, SharedMemory
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.instance import batch_message
from nereid.services.scheduler.models.catalogue import Catalogue
from nereid.services.scheduler.requests.admission import GatewaySession, HoldingRoom, Intake
from nereid.services.scheduler.requests.entry import Batch
from nereid.services.scheduler.requests.shared_payloads import Slabs
from nereid.shm.segments import Segments
from tests.support.scheduler.fake_executors import MIB, Executor
from tests.support.scheduler.samples import entry_of


class Gateway:
    """A session whose requests nobody looks at, and its link."""

    def __init__(self, slabs: Slabs, domain: str) -> None:
        self.sent: list[Any] = []
        room = HoldingRoom(1.0, 1)
        self.session = GatewaySession(Intake(Catalogue(), room), slabs, domain)
        self.session.link = self

    def send(self, item: Any) -> None:
        self.sent.append(item)

    def flush(self) -> None:
        pass

    def answered(self, answer: Answer) -> None:
        self.session._pending[answer.id] = (None, None)  # type: ignore[assignment]
        self.session._answer(answer)


def world(gateways: str = "here") -> tuple[Executor, Gateway]:
    slabs, executor = Slabs("here"), Executor()
    slabs.joined(executor)
    return executor, Gateway(slabs, gateways)


def test_a_gateway_that_shares_memory_gets_references_and_gives_them_back() -> None:
    executor, gateway = world()
    answer = executor.answer(1)
    gateway.answered(answer)
    assert gateway.sent == [answer]
    assert executor.told == []
    gateway.session.on_items([Release((answer.slab, "1.2.3"))])
    assert executor.told == [([answer.slab], False)]
    gateway.session.on_items([Release((answer.slab,))])
    assert len(executor.told) == 1, "what comes back twice came back once"


def test_a_gateway_that_does_not_gets_bytes() -> None:
    for domain in ("", "elsewhere"):
        executor, gateway = world(domain)
        answer = executor.answer(1)
        gateway.answered(answer)
        assert gateway.sent[0].payloads == [b"abc"]
        assert executor.told == [([answer.slab], False)]


def test_an_answer_that_died_with_its_executor_cannot_be_brought_in() -> None:
    executor, gateway = world("elsewhere")
    answer = executor.answer(1)
    executor.segments.discard(answer.slab)
    gateway.answered(answer)
    assert gateway.sent[0].error.code == Unavailable.code


def test_an_answer_that_nobody_wants_goes_back() -> None:
    executor, gateway = world()
    answer = executor.answer(1)
    gateway.session._answer(answer)
    assert (gateway.sent, executor.told) == ([], [([answer.slab], False)])


def test_what_a_gateway_had_when_it_broke_off_is_not_used_again() -> None:
    executor, gateway = world()
    answer = executor.answer(1)
    gateway.answered(answer)
    gateway.session.on_down()
    assert executor.told == [([answer.slab], True)]


def test_executors_that_left_or_live_elsewhere_are_told_nothing() -> None:
    slabs = Slabs("here")
    gone, stranger = Executor(), Executor("elsewhere")
    slabs.joined(gone)
    slabs.left(gone)
    slabs.joined(stranger)
    slabs.left(stranger)
    slabs.give_back([f"{os.getpid()}.1.2"])
    assert gone.told == stranger.told == []
    assert not Slabs("").shared_with("")


def test_an_executor_elsewhere_gets_a_batch_with_all_its_bytes() -> None:
    segments = Segments(8 * MIB)
    here, gone = segments.take(MIB), segments.take(MIB)
    assert here is not None
    assert gone is not None
    here.view[:3] = b"abc"
    reference, lost = here.range(0, 3), gone.range(0, 3)
    segments.discard(gone.name)
    entries = [entry_of(), entry_of()]
    entries[0].request = InferRequest(1, b"one", [reference, b"x"])
    entries[1].request = InferRequest(2, b"two", [lost])
    message = batch_message(1, Batch(entries, 2, "full"), 0, inline=True)
    first, second = pb.Batch.FromString(message).members
    assert [each.inline for each in first.payloads] == [b"abc", b"x"]
    # Its taker tells that it is not there, and its batchmates run.
    assert SharedMemory(second.payloads[0].shared_memory.slab, 0, 3) == lost
    kept = pb.Batch.FromString(batch_message(1, Batch(entries, 2, "full"), 0)).members[0]
    assert kept.payloads[0].shared_memory.slab == here.name
