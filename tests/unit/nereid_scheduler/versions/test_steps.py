"""When versions take their steps: after an input, at the end of a turn, or at a time."""

import time

import pytest

from nereid_scheduler.versions.steps import Stepper, Steps, Turns
from tests.support.forms import pure_only
from tests.support.scheduler.world import turn
from tests.support.waiting import until

pytestmark = pure_only


class Version(Stepper):
    def __init__(self, steps: Steps, *, due_ns: int | None = None) -> None:
        self.log: list[str] = []
        self.due_ns = due_ns
        self.then: Version | None = None
        self.fails = False
        self.turns = Turns(self, steps)

    def expire(self, now_ns: int) -> None:
        self.log.append("expire")

    def take_step(self, now_ns: int) -> int | None:
        if self.fails:
            raise ValueError
        self.log.append("step")
        if self.then is not None:
            self.then.turns.ask()
        due_ns, self.due_ns = self.due_ns, None
        return due_ns


async def test_a_step_is_taken_when_the_input_is_recorded() -> None:
    steps = Steps()
    version = Version(steps)
    steps.begin_input()
    version.turns.ask()
    version.turns.ask()
    assert version.log == []
    steps.end_input()
    assert version.log == ["step"]
    await turn()
    assert version.log == ["step"]


async def test_steps_may_be_taken_before_the_input_ends_and_asked_for_again() -> None:
    steps = Steps()
    version = Version(steps)
    steps.begin_input()
    version.turns.ask()
    steps.take_steps()
    assert version.log == ["step"]
    version.turns.ask()
    steps.end_input()
    assert version.log == ["step", "step"]


async def test_without_an_input_a_step_is_taken_at_the_end_of_the_turn() -> None:
    version = Version(Steps())
    version.turns.ask()
    assert version.log == []
    await turn()
    assert version.log == ["expire", "step"]


async def test_an_input_within_an_input_ends_with_it() -> None:
    steps = Steps()
    version = Version(steps)
    steps.begin_input()
    steps.begin_input()
    version.turns.ask()
    steps.end_input()
    assert version.log == []
    steps.end_input()
    assert version.log == ["step"]


async def test_a_step_may_let_others_step() -> None:
    steps = Steps()
    version, other = Version(steps), Version(steps)
    version.then = other
    version.turns.wake()
    await turn()
    assert (version.log, other.log) == (["expire", "step"], ["step"])


async def test_a_step_that_fails_leaves_the_others_and_the_next_input_as_they_are() -> None:
    steps = Steps()
    version, other, broken = Version(steps), Version(steps), Version(steps)
    broken.fails = True
    steps.begin_input()
    broken.turns.ask()
    version.turns.ask()
    with pytest.raises(ValueError):
        steps.end_input()
    steps.begin_input()
    other.turns.ask()
    steps.end_input()
    assert (version.log, other.log) == (["step"], ["step"])


async def test_a_step_is_taken_when_it_is_due() -> None:
    steps = Steps()
    version = Version(steps, due_ns=time.monotonic_ns() + 1_000_000)
    version.turns.wake()
    await until(lambda: len(version.log) == 4)
    assert version.log == ["expire", "step"] * 2
