"""Questions whether a model is ready: who is woken, who is answered, and when nobody is there."""

from __future__ import annotations

import json

import pytest

from nereid.services.executor.backends.python.supervisor.readiness_queries import Questions


def said(*what: object) -> bytearray:
    return bytearray(json.dumps(what).encode())


class Asker:
    """Who asks, and the thread that is to be woken."""

    def __init__(self) -> None:
        self.responses: list[bool] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_without_a_worker_nothing_is_ready() -> None:
    questions, asker = Questions(), Asker()
    assert not questions.welcome
    questions.ask(asker.responses.append)
    assert asker.responses == [False]
    assert questions.fetch() == []


def test_each_question_is_handed_over_once_and_responded_once() -> None:
    questions, asker = Questions(), Asker()
    questions.open(asker.wake)
    assert questions.welcome
    questions.ask(asker.responses.append)
    questions.ask(asker.responses.append)
    assert asker.woken == 2
    first, second = questions.fetch()
    assert questions.fetch() == []
    questions.hear(said(second, True))
    questions.hear(said(first, False))
    questions.hear(said(first, True))
    assert asker.responses == [True, False]


@pytest.mark.parametrize("fetched", [False, True])
def test_when_the_worker_ends_it_is_not_ready(fetched: bool) -> None:
    questions, asker = Questions(), Asker()
    questions.open(asker.wake)
    questions.ask(asker.responses.append)
    numbers = questions.fetch() if fetched else [1]
    questions.close()
    assert asker.responses == [False]
    questions.open(asker.wake)
    assert questions.fetch() == []
    questions.hear(said(*numbers, True))
    assert asker.responses == [False]


@pytest.mark.parametrize("text", [b"", b"7", b"[1]", b"[[1], true]", b"\xff"])
def test_what_makes_no_sense_is_passed_over(text: bytes) -> None:
    questions, asker = Questions(), Asker()
    questions.open(asker.wake)
    questions.ask(asker.responses.append)
    (number,) = questions.fetch()
    questions.hear(bytearray(text))
    assert asker.responses == []
    questions.hear(said(number, 1))
    assert asker.responses == [False]
