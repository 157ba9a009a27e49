"""Explores the interleavings of a small world of processes, as CHESS, loom and shuttle do.

A world wires the product's own state machines to channels. At each step some actions are enabled:
the next message of a channel arrives, a process takes a step of its own, something is disrupted.
explore() replays every schedule up to a bound of reorderings, fewest first, so that what it finds
has the shortest story. explore_random() samples schedules by seed, as PCT does: actors have random
priorities, which change at few random points, so that a fault that takes d ordering decisions is
found with a probability that depends on d and not on the length of the run.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

# A run with more steps than this does not come to rest.
_MAX_STEPS: Final = 2000
# How often a step of a random run is a disruption, if one can happen.
_DISRUPTION_PROBABILITY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Action:
    """One step that can be taken now.

    actor: the channel or process whose step it is. text: of the story; equal steps of equal states
    have equal texts. disruption: it may happen but need not, so a world is at rest without it.
    """

    actor: str
    text: str
    perform: Callable[[], None]
    disruption: bool = False


class World:
    """What is explored; made anew for every schedule, always the same."""

    def actions(self) -> Iterable[Action]:
        """The enabled actions, in the order in which they would happen if nothing were late."""
        raise NotImplementedError

    def check(self) -> None:
        """After each step: raise AssertionError where an invariant does not hold."""

    def check_at_rest(self) -> None:
        """When nothing but disruptions can happen: raise where something is stuck or leaked."""

    def fingerprint(self) -> Hashable:
        """Equal for states with the same future; None: not known, nothing is pruned."""
        return None


@dataclass(slots=True)
class Channel:
    """Messages from one process to another, in order; channels keep no order among each other."""

    name: str
    deliver: Callable[[object], None]
    messages: deque[object] = field(default_factory=deque)
    broken: bool = False

    def send(self, message: object) -> None:
        """What is sent on a broken channel is lost."""
        if not self.broken:
            self.messages.append(message)

    def close(self) -> None:
        """It breaks: what has not arrived never does."""
        self.broken = True
        self.messages.clear()

    def arrivals(self) -> Iterable[Action]:
        """The arrival of its next message, if there is one."""
        if self.messages:
            yield Action(self.name, f"{self.name}: {self.messages[0]}", self._deliver_next)

    def _deliver_next(self) -> None:
        self.deliver(self.messages.popleft())


@dataclass(frozen=True, slots=True)
class Failure:
    """An invariant that does not hold, and the steps that lead there."""

    story: Sequence[str]
    error: BaseException
    # Of explore(): the indexes of the actions. Of explore_random(): the seed.
    schedule: Sequence[int] = ()
    seed: int | None = None

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.story, 1))
        return f"{type(self.error).__name__}: {self.error}\n{steps}"


@dataclass(slots=True)
class Exploration:
    """What was explored. complete: there is no further schedule within the bound."""

    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    # Of explore(): every schedule with so many reorderings has been run; -1: none.
    bound: int = -1
    complete: bool = False
    failure: Failure | None = None

    def __str__(self) -> str:
        extent = "all" if self.complete else "the first"
        return f"{extent} {self.runs} schedules, {self.steps} steps, {self.seconds:.1f} s"


class _Run:
    """One schedule of one world."""

    def __init__(self, make_world: Callable[[], World]) -> None:
        self.world = make_world()
        self.story: list[str] = []

    def step(self, action: Action) -> None:
        self.story.append(action.text)
        action.perform()
        self.world.check()
        assert len(self.story) < _MAX_STEPS, "it does not come to rest"


def explore(
    make_world: Callable[[], World],
    *,
    reorderings: int,
    limit: int | None = None,
    limit_s: float | None = None,
) -> Exploration:
    """Replay every schedule with at most so many reorderings, until one fails.

    A reordering is a step other than the first enabled action, or a disruption. limit: of runs;
    limit_s: of the time that they take.
    """
    found = Exploration()
    began = time.monotonic()
    # By the number of reorderings: the prefixes of schedules still to run.
    prefixes: list[deque[tuple[int, ...]]] = [deque() for _ in range(reorderings + 1)]
    prefixes[0].append(())
    seen: set[Hashable] = set()
    for used, level in enumerate(prefixes):
        while level:
            found.seconds = time.monotonic() - began
            if limit is not None and found.runs >= limit:
                return found
            if limit_s is not None and found.seconds >= limit_s:
                return found
            further = prefixes[used + 1] if used < reorderings else None
            found.failure = _run_prefix(make_world, level.popleft(), further, seen, found)
            if found.failure is not None:
                found.seconds = time.monotonic() - began
                return found
        found.bound = used
    found.complete = True
    found.seconds = time.monotonic() - began
    return found


def _run_prefix(
    make_world: Callable[[], World],
    prefix: tuple[int, ...],
    further: deque[tuple[int, ...]] | None,
    seen: set[Hashable],
    found: Exploration,
) -> Failure | None:
    """Run a prefix and then, to the end, what comes first; further: gets the alternatives."""
    run = _Run(make_world)
    found.runs += 1
    schedule: list[int] = []
    try:
        # No more actions are looked at than are needed: that is what takes the time.
        for chosen in prefix:
            schedule.append(chosen)
            found.steps += 1
            run.step(next(islice(run.world.actions(), chosen, None)))
        while True:
            # A state that was seen with as few reorderings has been explored from there.
            mark = run.world.fingerprint()
            if mark is not None:
                if mark in seen:
                    return None
                seen.add(mark)
            enabled: Iterable[tuple[int, Action]] = enumerate(run.world.actions())
            if further is not None:
                enabled = list(enabled)
            first = next((each for each in enabled if not each[1].disruption), None)
            if further is not None:
                others = (i for i, _ in enabled if first is None or i != first[0])
                further.extend((*schedule, i) for i in others)
            if first is None:
                run.world.check_at_rest()
                return None
            chosen, action = first
            schedule.append(chosen)
            found.steps += 1
            run.step(action)
    except Exception as error:  # whatever the machines raise is what is looked for
        return Failure(run.story, error, schedule)


def explore_random(
    make_world: Callable[[], World], *, seeds: Iterable[int], changes: int = 3, length: int = 60
) -> Exploration:
    """Sample schedules, one for each seed, until one fails.

    changes: of priorities in a run; length: the steps among which they are.
    """
    found = Exploration()
    began = time.monotonic()
    for seed in seeds:
        found.runs += 1
        found.failure = _run_seed(make_world, seed, changes, length, found)
        if found.failure is not None:
            break
    else:
        found.complete = True
    found.seconds = time.monotonic() - began
    return found


def _run_seed(
    make_world: Callable[[], World], seed: int, changes: int, length: int, found: Exploration
) -> Failure | None:
    random_ = random.Random(seed)
    points = {random_.randrange(length) for _ in range(changes)}
    priorities: dict[str, float] = {}
    run = _Run(make_world)
    try:
        while True:
            actions = list(run.world.actions())
            disruptions = [action for action in actions if action.disruption]
            steps = [action for action in actions if not action.disruption]
            if disruptions and random_.random() < _DISRUPTION_PROBABILITY:
                action = random_.choice(disruptions)
            elif not steps:
                run.world.check_at_rest()
                return None
            else:
                for each in steps:
                    priorities.setdefault(each.actor, random_.random())
                action = max(steps, key=lambda each: priorities[each.actor])
                if len(run.story) in points:
                    priorities[action.actor] = random_.random() - 1.0
            found.steps += 1
            run.step(action)
    except Exception as error:
        return Failure(run.story, error, seed=seed)
