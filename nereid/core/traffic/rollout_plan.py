"""Plan and state of a rollout, which gives a version its traffic by steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nereid.core.traffic.rollout_rules import (
    FACTOR,
    MAX_COMPARED,
    WHOLE,
    Rule,
    check_every,
    check_steps,
    parse_rules,
)
from nereid.core.traffic.weights import MAX_WEIGHT, Traffic, make_traffic, read_traffic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUNNING, PAUSED, DONE, BACK, ABORTED = "running", "paused", "done", "back", "aborted"
STATES: Final = frozenset({RUNNING, PAUSED, DONE, BACK, ABORTED})


@dataclass(frozen=True, slots=True)
class Rollout:
    """Plan and state of a rollout. former: the traffic before it, to which it goes back."""

    to: int
    steps: tuple[int, ...]
    every_s: float
    rules: tuple[Rule, ...]
    former: Traffic
    step: int = 0
    state: str = RUNNING
    reason: str = ""

    @property
    def percent(self) -> int:
        """Share of the requests that the version has, in percent."""
        if self.state in {BACK, ABORTED}:
            return 0
        return WHOLE if self.state == DONE else self.steps[self.step]

    @property
    def is_over(self) -> bool:
        """True if nothing changes any more."""
        return self.state in {DONE, BACK, ABORTED}

    @property
    def rule_text(self) -> str:
        """Text from which the rules were parsed."""
        return " ".join(rule.text for rule in self.rules)

    def traffic(self) -> Traffic:
        """Return the traffic of this state."""
        others = {number: weight for number, weight in self.former.weights if number != self.to}
        if self.state in {BACK, ABORTED}:
            return make_traffic({**others, self.to: 0}, self.former.by)
        if self.percent == WHOLE:
            return make_traffic({self.to: WHOLE}, self.former.by)
        exact = {number: weight * (WHOLE - self.percent) for number, weight in others.items()}
        exact[self.to] = sum(others.values()) * self.percent
        scale = min(1.0, MAX_WEIGHT / max(exact.values()))
        weights = {
            number: max(1, round(weight * scale)) if weight else 0
            for number, weight in exact.items()
        }
        return make_traffic(weights, self.former.by)

    def document(self) -> dict[str, Any]:
        """Return what `read_rollout` reads."""
        return {
            "to": self.to,
            "steps": list(self.steps),
            "every_seconds": self.every_s,
            "if": self.rule_text,
            "former": self.former.document(),
            "step": self.step,
            "state": self.state,
            "reason": self.reason,
        }


def start_rollout(
    to: int, steps: Sequence[int], every_s: float, rules: str, former: Traffic
) -> Rollout:
    """Return a rollout that begins. Raises ValueError with the reason if it cannot."""
    if to <= 0:
        raise ValueError("expected a version above 0")
    if not any(weight for number, weight in former.weights if number != to):
        raise ValueError(f"all requests go to version {to} already")
    rollout = Rollout(to, check_steps(steps), check_every(every_s), parse_rules(rules), former)
    compared = [rule.text for rule in rollout.rules if rule.unit == FACTOR]
    if compared and rollout.steps[0] > MAX_COMPARED:
        raise ValueError(
            f"{compared[0]} compares at steps up to {MAX_COMPARED}%: add one, or use a limit in ms"
        )
    return rollout


def read_rollout(document: Mapping[str, Any]) -> Rollout:
    """Return the rollout in a document. Raises ValueError or another error for any other."""
    rollout = start_rollout(
        int(document["to"]),
        [int(step) for step in document["steps"]],
        float(document["every_seconds"]),
        str(document["if"]),
        read_traffic(document["former"]),
    )
    step, state = int(document["step"]), str(document["state"])
    if not 0 <= step < len(rollout.steps) or state not in STATES:
        raise ValueError("a step or a state that there is not")
    return replace(rollout, step=step, state=state, reason=str(document["reason"]))
