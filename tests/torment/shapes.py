"""Shapes of the load, and the sequence of them, which a seed decides alone."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

# When clients send, and how many do; "steady" is what --clients and --pause-ms say.
PACES: Final = ("steady", "saturation", "bursts")
# What they send, and for how long they wait; a phase has any of them.
TRAITS: Final = ("mix", "large", "cancellations", "deadlines")
SHAPES: Final = (*PACES, *TRAITS)
# How many clients send without pauses, of all processes.
CLIENTS: Final = (64, 128, 256, 512)
# Of a mix: a few models have most of the requests, and none has none.
_WEIGHTS: Final = (1, 1, 1, 4, 20)
# Of INT64, with the trait "large": 0.5 to 4 MB.
_LARGE_ELEMENTS: Final = (1 << 16, 1 << 17, 1 << 18, 1 << 19)
_PHASE_S: Final = (6.0, 15.0)
_BETWEEN_BURSTS_S: Final = (0.5, 3.0)
# Short enough to find a request anywhere: unread, queued, executing, responded to.
_CANCEL_S: Final = (0.0005, 0.3)
_DEADLINE_S: Final = (0.001, 0.05)
# Of the requests of a phase with the trait.
_SHARE: Final = 0.3
# Of those in sequences: each ends a sequence, whose slot may be taken until it expires.
_SHARE_IN_SEQUENCES: Final = 0.05


@dataclass(frozen=True, slots=True)
class Phase:
    """The load for a while."""

    number: int
    # Since the begin of the load.
    begin_s: float
    end_s: float
    pace: str
    traits: frozenset[str]
    # Of all processes; 0: as many as there are of the steady pace.
    clients: int = 0
    between_bursts_s: float = 0.0
    # Which model a client asks; without them each has its own.
    weights: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        what = self.pace + (f" of {self.clients} clients" if self.clients else "")
        if self.between_bursts_s:
            what += f" each {self.between_bursts_s:.1f} s"
        return ", ".join([what, *sorted(self.traits)])

    @property
    def shapes(self) -> list[str]:
        return [self.pace, *sorted(self.traits)]

    def next_burst_s(self, now_s: float) -> float:
        """When its clients send next, all at once."""
        number = (now_s - self.begin_s) // self.between_bursts_s + 1
        return self.begin_s + number * self.between_bursts_s

    def elements(self, chance: random.Random, usual: int) -> int:
        """Of a large tensor."""
        return chance.choice(_LARGE_ELEMENTS) if "large" in self.traits else usual

    def limits(
        self, chance: random.Random, *, in_sequence: bool
    ) -> tuple[float | None, float | None]:
        """A request's deadline, and after how long its client cancels it; at most one of them."""
        share = _SHARE_IN_SEQUENCES if in_sequence else _SHARE
        if "deadlines" in self.traits and chance.random() < share:
            return _log_uniform(chance, _DEADLINE_S), None
        if "cancellations" in self.traits and chance.random() < share:
            return None, _log_uniform(chance, _CANCEL_S)
        return None, None


def _log_uniform(chance: random.Random, between: tuple[float, float]) -> float:
    low, high = between
    return round(math.exp(chance.uniform(math.log(low), math.log(high))), 6)


def selected(names: Sequence[str]) -> list[str]:
    """The shapes that are meant: "all" or names of SHAPES.

    Raises:
        ValueError: a name means none.
    """
    if unknown := set(names) - {"all", *SHAPES}:
        raise ValueError(
            f"no shape is called {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}"
        )
    return [each for each in SHAPES if "all" in names or each in names]


def phases(seed: int, names: Sequence[str], models: Sequence[str]) -> Iterator[Phase]:
    """Phases without end: each has one of the paces that are named and some of the traits.

    A pace or a trait that is named alone is there in all phases. Without any name there is one
    phase, the steady one.
    """
    chance = random.Random(f"shapes of {seed}")
    paces = [each for each in PACES if each in names] or ["steady"]
    traits = [each for each in TRAITS if each in names]
    if not names:
        yield Phase(0, 0.0, float("inf"), "steady", frozenset())
        return
    begin_s, number = 0.0, 0
    while True:
        end_s = begin_s + chance.uniform(*_PHASE_S)
        pace = chance.choice(paces)
        drawn = {each for each in traits if len(traits) == 1 or chance.random() < 0.5}
        clients = chance.choice(CLIENTS) if pace != "steady" else 0
        between_s = chance.uniform(*_BETWEEN_BURSTS_S)
        weights = {each: chance.choice(_WEIGHTS) for each in models}
        yield Phase(
            number,
            begin_s,
            end_s,
            pace,
            frozenset(drawn),
            clients,
            between_s if pace == "bursts" else 0.0,
            weights if "mix" in drawn else {},
        )
        begin_s, number = end_s, number + 1


class Timeline:
    """The phase of each time."""

    def __init__(self, coming: Iterator[Phase]) -> None:
        self._coming = coming
        # All phases so far.
        self.made = [next(coming)]

    def at(self, since_s: float) -> Phase:
        """The phase of a time since the begin of the load."""
        while self.made[-1].end_s <= since_s:
            self.made.append(next(self._coming))
        return self.made[bisect.bisect(self.made, since_s, key=lambda each: each.begin_s) - 1]


@dataclass
class Load:
    """What clients were to do, since a time of the campaign's, and what became of it."""

    timeline: Timeline
    begin_s: float = 0.0
    # How many requests the gateways had, about each second.
    pending: list[tuple[float, float]] = field(default_factory=list)
    # Of each client process; and for how long its event loop stood still, at most: so long all may
    # have waited for their clients alone.
    cpu_s: dict[int, float] = field(default_factory=dict)
    stalled_s: dict[int, float] = field(default_factory=dict)

    def phase_at(self, at_s: float) -> Phase:
        return self.timeline.at(max(0.0, at_s - self.begin_s))
