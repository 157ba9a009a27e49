"""Faults, and the schedule of them, which a seed decides alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# The kinds of services that a mesh has.
SERVICES: Final = ("gateway", "scheduler", "executor", "cache", "redis")
# What each kind of fault has for targets: a kind of service, a pair of them, or the mesh.
KINDS: Final[Mapping[str, str]] = {
    **{f"kill-{service}": service for service in SERVICES},
    **{f"stop-{service}": service for service in SERVICES},
    # SIGTERM, and a new process: the way of an upgrade.
    **{f"roll-{service}": service for service in SERVICES if service != "redis"},
    # Processes of Python models.
    "kill-worker": "executor",
    "stop-worker": "executor",
    "partition": "link",
    "loss": "link",
    "delay": "link",
    "clock": "service",
    "reload": "mesh",
    "broken-edit": "mesh",
    "disk-full": "mesh",
    "disk-readonly": "mesh",
    # An executor comes and drains.
    "join": "mesh",
    "hostile": "gateway",
}
# Only by name: libfaketime, in every process for its whole life, at times keeps one whose threads
# contend for the interpreter's lock busy for seconds, which its peers rightly take for a hang.
APART: Final = frozenset({"clock"})
# Who talks to whom inside a mesh.
_LINKS: Final = (
    ("gateway", "scheduler"),
    ("executor", "scheduler"),
    ("scheduler", "scheduler"),
    ("scheduler", "cache"),
    ("cache", "redis"),
)
# A short fault is over before anybody has noticed; a long one outlasts keepalive.
_DURATIONS_S: Final = {"short": (0.1, 1.0), "medium": (1.0, 4.0), "long": (6.0, 12.0)}


@dataclass(frozen=True, slots=True)
class Disruption:
    """One thing that goes wrong, and comes right again after its duration."""

    number: int
    kind: str
    # A service's name, two of them with a comma, or nothing.
    target: str
    at_s: float
    duration_s: float
    # In [0, 1): what else the kind has to choose.
    choice: float

    def __str__(self) -> str:
        what = f"{self.kind} {self.target}".strip()
        return f"#{self.number} {what} at {self.at_s:.1f} s for {self.duration_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A fault that happened: from its begin until its undoing was over."""

    disruption: Disruption
    began_s: float
    ended_s: float


def selected(names: Sequence[str]) -> list[str]:
    """The kinds that are meant; "kill" means all that begin with it, and "all" those that are not
    APART.

    Raises:
        ValueError: a name means none.
    """
    chosen: list[str] = []
    for name in names:
        kinds = [kind for kind in KINDS if kind == name or kind.startswith(f"{name}-")]
        if name == "all":
            kinds = [kind for kind in KINDS if kind not in APART]
        if not kinds:
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(KINDS)}")
        chosen += [kind for kind in kinds if kind not in chosen]
    return chosen


def targets_of(kind: str, services: Sequence[str]) -> list[str]:
    """By names such as executor-1."""
    what = KINDS[kind]
    if what == "mesh":
        return [""]
    if what == "link":
        return [
            f"{one},{other}"
            for left, right in _LINKS
            for one in services
            for other in services
            if one.startswith(left) and other.startswith(right) and one != other
        ]
    if what == "service":
        return [each for each in services if not each.startswith("redis")]
    return [each for each in services if each.startswith(what)]


def schedule(
    seed: int, kinds: Sequence[str], services: Sequence[str], every_s: float
) -> Iterator[Disruption]:
    """Faults without end, one each `every_s` seconds on average, by the time of their begin.

    A target has one fault at a time; different ones overlap.
    """
    chance = random.Random(f"faults of {seed}")
    possible = {kind: targets for kind in kinds if (targets := targets_of(kind, services))}
    if not possible:
        return
    names = list(possible)
    busy_until_s: dict[str, float] = {}
    now_s, number = 0.0, 0
    while True:
        now_s += chance.uniform(0.3, 1.7) * every_s
        kind = chance.choice(names)
        target = chance.choice(possible[kind])
        low, high = _DURATIONS_S[chance.choices(list(_DURATIONS_S), (4, 4, 2))[0]]
        duration_s, choice = round(chance.uniform(low, high), 3), round(chance.random(), 6)
        subject = f"{kind.partition('-')[2]}:{target}" if target else kind
        if busy_until_s.get(subject, 0.0) > now_s:
            continue
        busy_until_s[subject] = now_s + duration_s
        number += 1
        yield Disruption(number, kind, target, round(now_s, 3), duration_s, choice)
