"""The steps of a rollout as a machine: measurements in, the next state out.

    state     event                                              next state
    running   a rule is broken                                   back
    running   all rules hold, and the step has lasted long       running, at the next step; done
              enough                                             after the last one
    running   pause                                              paused
    paused    resume                                             running, measured anew
    running,  abort                                              aborted
    paused

A rule is open while its interval overlaps the limit: the step waits for more requests. Each look
at the rules may be wrong, and the doubts of all looks add up. Rules are checked again

- when the requests have grown by a fifth, with the same doubt each time: such looks are few;
- after each twentieth of the step's least time, for broken rules alone: a version with few
  requests is back within that time as well. Such a look is also at the last such times, so that a
  long good past hides nothing. The doubts of these looks fall so that together they are one.

Latencies of neighbouring requests are alike: a moment without processor time makes hundreds of them
slow. A rule of latencies is broken only if the requests after such a look break it as well.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.traffic.rollout_plan import BACK, DONE, RUNNING
from nereid.core.traffic.rollout_rules import DIFFERENCE, ERRORS, FACTOR
from nereid_scheduler.control.rollouts.intervals import (
    quantile_between,
    share_at_least,
    share_at_most,
)
from nereid_scheduler.core.measurements.fine_durations import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.traffic.rollout_plan import Rollout
    from nereid.core.traffic.rollout_rules import Rule

# One-sided, for one look: to go back wrongly may happen once in a million, and to go on needs less.
_BROKEN_DOUBT: Final = 1e-6
_PASS_DOUBT: Final = 0.05
_AGAIN_DOUBT: Final = 1e-3
_FIRST_LOOK: Final = 20
_GROWTH: Final = 1.2
# Looks by time in each step's least time.
_TIMED_LOOKS: Final = 20


class Window(NamedTuple):
    """Requests of versions that have ended, the failed ones, and durations by bucket.

    Not each request has a duration that can be compared.
    """

    requests: int
    failures: int
    durations: Sequence[int]

    def since(self, before: Window) -> Window:
        """Return what came after `before`."""
        durations = [now - then for now, then in zip(self.durations, before.durations, strict=True)]
        return Window(self.requests - before.requests, self.failures - before.failures, durations)


NO_REQUESTS: Final = Window(0, 0, (0,) * BUCKETS)


class Difference(NamedTuple):
    """Responses of a shadow that were compared, and those that differ."""

    compared: int
    differing: int

    def since(self, before: Difference | None) -> Difference:
        """Return what came after `before`; all of it if the shadow was set anew."""
        if before is None or before.compared > self.compared or before.differing > self.differing:
            return self
        return Difference(self.compared - before.compared, self.differing - before.differing)


class Standing(Enum):
    """Standing of a rule."""

    HOLDS = "holds"
    BROKEN = "broken"
    OPEN = "open"


class Checked(NamedTuple):
    """A rule with its standing, and the figures for people."""

    rule: Rule
    standing: Standing
    figures: str


class StepWatch:
    """Measurements of one step, since it began or was resumed."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        now_s: float,
        new: Window,
        old: Window,
        reference: Window | None = None,
        difference: Difference | None = None,
        *,
        every_s: float,
        compares_durations: bool = True,
    ) -> None:
        """Begin with the counts so far.

        reference: what to compare with at a step that leaves the versions in service no requests.
        every_s: the step's least time. compares_durations: whether the versions have comparable
        loads.
        """
        self.begun_s = now_s
        self._every_s = every_s
        self._new, self._old = new, old
        # Time, and the counts then, at the last multiples of the step's least time.
        self._earlier = self._latest = now_s, new, old
        self._reference = reference
        self._difference = difference
        self._compares_durations = compares_durations
        self._next_look = _FIRST_LOOK
        self._timed_look_s = now_s + every_s / _TIMED_LOOKS
        self._timed_looks = 0
        # Counts when a rule of latencies was found broken, by rule.
        self._suspected: dict[Rule, tuple[Window, Window]] = {}
        self.checked: list[Checked] = []

    def reference(self, old: Window) -> Window:
        """Return the window with which the version is compared now."""
        return old.since(self._old) if self._reference is None else self._reference

    def waits_for(self, new: Window) -> str:
        """Return why no rule stands yet; empty if they do."""
        if self.checked:
            return ""
        return f"{new.requests - self._new.requests} of {_FIRST_LOOK} requests have come"

    def check(
        self,
        now_s: float,
        rules: Sequence[Rule],
        new: Window,
        old: Window,
        difference: Difference | None,
    ) -> list[Checked]:
        """Return how the rules stand, as of the last look or now."""
        requests = new.requests - self._new.requests
        if requests >= self._next_look:
            self._next_look = int(requests * _GROWTH) + 1
            window, reference = new.since(self._new), self.reference(old)
            self.checked = [
                self._check(rule, window, reference, difference, _BROKEN_DOUBT) for rule in rules
            ]
        if now_s >= self._timed_look_s:
            self._timed_look_s = now_s + self._every_s / _TIMED_LOOKS
            self._timed_looks += 1
            # The sum of 1 / n(n + 1) over all n is 1, of two looks each.
            doubt = _BROKEN_DOUBT / (2 * self._timed_looks * (self._timed_looks + 1))
            checked = [
                self._check(rule, *windows, difference, doubt)
                for windows in self._timed_windows(now_s, new, old)
                for rule in rules
            ]
            broken = {each.rule: each for each in checked if each.standing is Standing.BROKEN}
            self.checked = [*broken.values()] or self.checked
        return [self._confirm(each, new, old) for each in self.checked]

    def _confirm(self, checked: Checked, new: Window, old: Window) -> Checked:
        """Return a broken rule of latencies as open until further requests break it as well."""
        rule = checked.rule
        if checked.standing is not Standing.BROKEN or rule.metric in {ERRORS, DIFFERENCE}:
            return checked
        new_before, old_before = self._suspected.setdefault(rule, (new, old))
        reference = old.since(old_before) if self._reference is None else self._reference
        again = _check_quantile(rule, new.since(new_before), reference, _AGAIN_DOUBT)
        if again.standing is Standing.BROKEN:
            return checked
        if again.standing is Standing.HOLDS:
            del self._suspected[rule]
        return checked._replace(standing=Standing.OPEN)

    def _timed_windows(self, now_s: float, new: Window, old: Window) -> list[tuple[Window, Window]]:
        """Return both sides' windows of the step, and those of the last one or two times of it."""
        windows = [(new.since(self._new), self.reference(old))]
        if now_s - self._latest[0] >= self._every_s:
            self._earlier, self._latest = self._latest, (now_s, new, old)
        begun_s, new_before, old_before = self._earlier
        if begun_s > self.begun_s:
            recent = old.since(old_before) if self._reference is None else self._reference
            windows.append((new.since(new_before), recent))
        return windows

    def _check(
        self, rule: Rule, new: Window, old: Window, difference: Difference | None, doubt: float
    ) -> Checked:
        """Return how a rule stands. doubt: that it is broken wrongly."""
        if rule.metric == ERRORS:
            return _check_errors(rule, new, old, doubt)
        if rule.metric == DIFFERENCE:
            return _check_difference(rule, difference, self._difference, doubt)
        if rule.unit == FACTOR and not self._compares_durations:
            # Load and time of day change latencies. Beside a version with most of the requests
            # nothing has the same load, and of all of them nothing is at the same time.
            return Checked(rule, Standing.HOLDS, f"{rule.metric} is not compared at this share")
        return _check_quantile(rule, new, old, doubt)


def next_state(rollout: Rollout, checked: Sequence[Checked], elapsed_s: float) -> Rollout:
    """Return the rollout after a look; the same one if it waits."""
    if rollout.state != RUNNING:
        return rollout
    broken = [each for each in checked if each.standing is Standing.BROKEN]
    if broken:
        reasons = "; ".join(f"{each.rule.text} is broken: {each.figures}" for each in broken)
        return replace(rollout, state=BACK, reason=f"at {rollout.percent}%: {reasons}")
    holds = bool(checked) and all(each.standing is Standing.HOLDS for each in checked)
    if not holds or elapsed_s < rollout.every_s:
        return rollout
    if rollout.step + 1 < len(rollout.steps):
        return replace(rollout, step=rollout.step + 1)
    return replace(rollout, state=DONE, reason="all rules held at every step")


def _check_errors(rule: Rule, new: Window, old: Window, doubt: float) -> Checked:
    def at_least(window: Window, doubt: float) -> float:
        return share_at_least(window.failures, window.requests, doubt)

    def at_most(window: Window, doubt: float) -> float:
        return share_at_most(window.failures, window.requests, doubt)

    standing = Standing.OPEN
    if at_least(new, doubt) - at_most(old, doubt) >= rule.limit:
        standing = Standing.BROKEN
    elif at_most(new, _PASS_DOUBT) - at_least(old, _PASS_DOUBT) < rule.limit:
        standing = Standing.HOLDS
    figures = (
        f"{new.failures} of {new.requests} requests have failed, {old.failures} of {old.requests}"
        " of the versions in service"
    )
    return Checked(rule, standing, figures)


def _check_quantile(rule: Rule, new: Window, old: Window, broken_doubt: float) -> Checked:
    def limits(doubt: float) -> tuple[float, float, float, float]:
        lower, upper = quantile_between(new.durations, rule.quantile, doubt)
        if rule.unit == "ms":
            return lower, upper, rule.limit * 1e6, rule.limit * 1e6
        below, above = quantile_between(old.durations, rule.quantile, doubt)
        return lower, upper, below * rule.limit, above * rule.limit

    lower, _, _, above = limits(broken_doubt)
    standing = Standing.OPEN
    if lower >= above:
        standing = Standing.BROKEN
    else:
        _, upper, below, _ = limits(_PASS_DOUBT)
        if upper < below:
            standing = Standing.HOLDS
    lower, upper = quantile_between(new.durations, rule.quantile, _PASS_DOUBT)
    figures = f"{rule.metric} is {_span(lower, upper)} in {sum(new.durations)} requests"
    if rule.unit != "ms":
        lower, upper = quantile_between(old.durations, rule.quantile, _PASS_DOUBT)
        figures += f", {_span(lower, upper)} in {sum(old.durations)} of the versions in service"
    return Checked(rule, standing, figures)


def _span(lower_ns: float, upper_ns: float) -> str:
    return f"{lower_ns / 1e6:.3g} to {upper_ns / 1e6:.3g} ms"


def _check_difference(
    rule: Rule, difference: Difference | None, before: Difference | None, doubt: float
) -> Checked:
    """Check all comparisons, and those of the step: a long good past hides nothing."""
    if difference is None:
        return Checked(rule, Standing.OPEN, "no shadow compares")
    recent = difference.since(before)
    standing = Standing.OPEN
    if any(
        share_at_least(each.differing, each.compared, doubt) >= rule.limit
        for each in (difference, recent)
    ):
        standing = Standing.BROKEN
    elif share_at_most(difference.differing, difference.compared, _PASS_DOUBT) < rule.limit:
        standing = Standing.HOLDS
    figures = (
        f"{difference.differing} of {difference.compared} compared responses differ,"
        f" {recent.differing} of {recent.compared} in this step"
    )
    return Checked(rule, standing, figures)
