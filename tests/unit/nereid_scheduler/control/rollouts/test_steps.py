"""Rollouts in virtual time: versions that fail or are slow are found, equal ones never are."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

import pytest

from nereid.core.traffic.caller_keys import key_of
from nereid.core.traffic.rollout_plan import (
    ABORTED,
    BACK,
    DONE,
    PAUSED,
    RUNNING,
    Rollout,
    read_rollout,
    start_rollout,
)
from nereid.core.traffic.rollout_rules import MAX_COMPARED, WHOLE
from nereid.core.traffic.weights import choose_version, make_traffic
from nereid_scheduler.control.rollouts.steps import (
    NO_REQUESTS,
    Checked,
    Difference,
    Standing,
    StepWatch,
    Window,
    next_state,
)
from nereid_scheduler.core.measurements.fine_durations import BUCKETS, bucket_of

RULES = "errors<0.5% p99<1.3x"
STEPS = (10, 50, 100)
EVERY_S = 60.0
RATE: Final = 200
FORMER = make_traffic({3: 1}, "header:x-user")
RUNS = 20
EQUAL_RUNS = 100


def begun(rules: str = RULES, **fields: object) -> Rollout:
    rollout = start_rollout(4, STEPS, EVERY_S, rules, FORMER)
    return replace(rollout, **fields)  # type: ignore[arg-type]


class Version:
    """A version's counters, under requests of a seed."""

    def __init__(self, failing: float = 0.002, slower: float = 1.0) -> None:
        self.failing = failing
        self.slower = slower
        self.requests = self.failures = 0
        self.durations = [0] * BUCKETS

    def serve(self, chance: random.Random, requests: int) -> None:
        self.requests += requests
        for _ in range(requests):
            if chance.random() < self.failing:
                self.failures += 1
            else:
                took_ns = chance.lognormvariate(0, 0.3) * 5e6 * self.slower
                self.durations[bucket_of(int(took_ns))] += 1

    def window(self) -> Window:
        return Window(self.requests, self.failures, list(self.durations))


def watching(**more: Any) -> StepWatch:
    """The watch of a step without requests."""
    return StepWatch(0.0, NO_REQUESTS, NO_REQUESTS, **{"every_s": EVERY_S} | more)


def run(
    seed: int,
    new: Version,
    *,
    breaks_at_s: float = 0.0,
    rate: float = RATE,
    rules: str = RULES,
    every_s: float = EVERY_S,
) -> tuple[Rollout, float]:
    """Run a rollout to its end; the rollout, and the seconds since its break."""
    chance = random.Random(seed)
    old, good = Version(), Version()
    rollout, now_s = begun(rules, every_s=every_s), 0.0
    came = 0.0
    watch = watching(every_s=every_s)
    while not rollout.is_over and now_s < 7200:
        now_s += 1
        if now_s > breaks_at_s:
            good.failing, good.slower = new.failing, new.slower
        came += rate
        requests, came = int(came), came % 1
        mine = sum(chance.random() * 100 < rollout.percent for _ in range(requests))
        good.serve(chance, mine)
        old.serve(chance, requests - mine)
        checked = watch.check(now_s, rollout.rules, good.window(), old.window(), None)
        after = next_state(rollout, checked, now_s - watch.begun_s)
        if after.step != rollout.step:
            reference = watch.reference(old.window()) if after.percent == WHOLE else None
            comparable = after.percent <= MAX_COMPARED
            now, before = good.window(), old.window()
            watch = StepWatch(
                now_s, now, before, reference, every_s=every_s, compares_durations=comparable
            )
        rollout = after
    return rollout, now_s - breaks_at_s


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_version_that_begins_to_fail_goes_back(seed: int) -> None:
    rollout, took_s = run(seed, Version(failing=0.08), breaks_at_s=30)
    assert rollout.state == BACK
    assert "errors<0.5% is broken" in rollout.reason
    assert took_s <= EVERY_S
    assert rollout.percent == 0
    assert rollout.traffic() == make_traffic({3: 1, 4: 0}, "header:x-user")


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_version_that_becomes_slow_goes_back(seed: int) -> None:
    rollout, took_s = run(seed, Version(slower=2.5), breaks_at_s=30, rate=400)
    assert rollout.state == BACK
    assert "p99<1.3x is broken" in rollout.reason
    assert took_s <= 2 * EVERY_S


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_version_with_few_requests_goes_back_within_its_step(seed: int) -> None:
    # It gets 15 requests in the time of a step.
    rollout, took_s = run(seed, Version(failing=1.0), rate=0.5, every_s=300.0)
    assert rollout.state == BACK
    assert took_s <= 300


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_long_good_past_hides_no_slowness(seed: int) -> None:
    # Half of all requests would have to be slow, of the whole step.
    slow = Version(slower=4.0)
    rollout, took_s = run(
        seed, slow, rules="errors<0.1% p50<2x", rate=2.0, breaks_at_s=900.0, every_s=300.0
    )
    assert rollout.state == BACK
    assert "p50<2x is broken" in rollout.reason
    assert took_s <= 600


def test_a_moment_without_processor_time_breaks_no_rule() -> None:
    rules = begun("p50<1.5x").rules
    watch, old, new = watching(), Version(), Version(slower=8.0)
    chance = random.Random(1)

    def standing(at_s: float) -> Standing:
        for version in (old, new):
            version.serve(chance, 200)
        (checked,) = watch.check(at_s, rules, new.window(), old.window(), None)
        return checked.standing

    assert standing(1.0) is Standing.OPEN
    new.slower = 1.0
    assert standing(2.0) is Standing.OPEN
    assert {standing(3.0 + second) for second in range(7)} == {Standing.HOLDS}
    # A version that stays slow breaks it, also after such a moment.
    new.slower = 8.0
    later = [standing(10.0 + 3 * second) for second in range(40)]
    assert Standing.BROKEN in later


@pytest.mark.parametrize("runs", [3, pytest.param(EQUAL_RUNS, marks=pytest.mark.nightly)])
def test_equal_versions_never_go_back(runs: int) -> None:
    for seed in range(runs):
        rollout, _ = run(1000 + seed, Version(), rate=100)
        assert rollout.state == DONE, rollout.reason
        assert rollout.traffic() == make_traffic({4: 100}, "header:x-user")


@pytest.mark.parametrize("runs", [1, pytest.param(EQUAL_RUNS, marks=pytest.mark.nightly)])
def test_equal_versions_with_few_requests_never_go_back(runs: int) -> None:
    for seed in range(runs):
        # Hundreds of looks by time, as the rules stay open.
        rollout, _ = run(
            2000 + seed, Version(), rate=2.0, rules="errors<0.1% p95<1.2x", every_s=300.0
        )
        assert rollout.state == RUNNING, rollout.reason


def test_a_step_waits_for_requests_however_long_it_lasts() -> None:
    rollout = begun()
    few = Window(10, 10, [0] * BUCKETS)
    watch = watching()
    assert watch.check(0.0, rollout.rules, few, few, None) == []
    assert next_state(rollout, [], 1e6) is rollout
    # Enough of them, but nothing to compare with: no rule holds, and none is broken.
    durations = [0] * BUCKETS
    durations[bucket_of(5_000_000)] = 9950
    alone = Window(10_000, 50, durations)
    checked = watch.check(0.0, rollout.rules, alone, NO_REQUESTS, None)
    assert [each.standing for each in checked] == [Standing.OPEN, Standing.OPEN]
    assert next_state(rollout, checked, 1e6) is rollout


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_version_that_differs_goes_back(seed: int) -> None:
    rollout = begun("difference<1e-3")
    watch = watching()
    chance = random.Random(seed)
    compared = differing = 0
    for second in range(1, 600):
        served = Window(second * 20, 0, [0] * BUCKETS)
        compared += 20
        differing += sum(chance.random() < (0.0001 if second < 30 else 0.1) for _ in range(20))
        shadow = Difference(compared, differing)
        checked = watch.check(float(second), rollout.rules, served, served, shadow)
        rollout = next_state(rollout, checked, 0.0)
        if rollout.is_over:
            break
    assert rollout.state == BACK
    assert "difference<1e-3 is broken" in rollout.reason


def test_a_long_good_past_hides_no_difference() -> None:
    rollout = begun("difference<1e-3")
    past = Difference(1_000_000, 0)
    watch = watching(difference=past)
    served = Window(1000, 0, [0] * BUCKETS)
    (checked,) = watch.check(0.0, rollout.rules, served, served, Difference(1_000_100, 20))
    assert checked.standing is Standing.BROKEN
    assert checked.figures.endswith("20 of 100 in this step")
    # A shadow that was set anew has no past.
    watch = watching(difference=past)
    (checked,) = watch.check(0.0, rollout.rules, served, served, Difference(4000, 0))
    assert checked.standing is Standing.HOLDS


@pytest.mark.parametrize(
    ("shadow", "standing"),
    [
        (None, Standing.OPEN),
        (Difference(0, 0), Standing.OPEN),
        (Difference(1000, 0), Standing.OPEN),
        (Difference(10, 1), Standing.OPEN),
        (Difference(4000, 0), Standing.HOLDS),
        (Difference(4000, 1), Standing.OPEN),
        (Difference(4000, 30), Standing.BROKEN),
    ],
)
def test_too_few_compared_responses_decide_nothing(
    shadow: Difference | None, standing: Standing
) -> None:
    rollout = begun("difference<1e-3")
    served = Window(1000, 0, [0] * BUCKETS)
    watch = watching()
    (checked,) = watch.check(0.0, rollout.rules, served, served, shadow)
    assert checked.standing is standing


def test_absolute_limits_of_durations() -> None:
    rollout = begun("p50<4ms p95<10ms")
    version = Version(failing=0.0)
    version.serve(random.Random(1), 5000)
    watch = watching()
    checked = watch.check(0.0, rollout.rules, version.window(), NO_REQUESTS, None)
    assert [each.standing for each in checked] == [Standing.OPEN, Standing.HOLDS]
    version.serve(random.Random(2), 500)
    checked = watch.check(0.0, rollout.rules, version.window(), NO_REQUESTS, None)
    assert [each.standing for each in checked] == [Standing.BROKEN, Standing.HOLDS]
    assert checked[0].figures.startswith("p50 is 4.9")


def test_rules_are_looked_at_when_requests_have_grown_by_a_fifth() -> None:
    rollout = begun("errors<50%")
    watch = watching()
    looks = 0
    before: object = None
    for requests in range(1, 2000):
        window = Window(requests, 0, [0] * BUCKETS)
        watch.check(0.0, rollout.rules, window, window, None)
        looks += watch.checked is not before and bool(watch.checked)
        before = watch.checked
    assert looks == 25


def test_the_last_step_is_compared_with_the_requests_before_it() -> None:
    before = Window(500, 5, [0] * BUCKETS)
    first = watching()
    assert first.reference(before).requests == 500
    last = StepWatch(1.0, NO_REQUESTS, before, first.reference(before), every_s=EVERY_S)
    assert last.reference(before).failures == 5


def test_durations_are_compared_only_beside_versions_with_as_many_requests() -> None:
    rules = begun("p99<2x p95<10ms").rules
    for compares, standing in ((True, Standing.BROKEN), (False, Standing.HOLDS)):
        slow, quick = Version(slower=10.0), Version()
        watch = watching(compares_durations=compares)
        for _ in range(2):
            for version in (slow, quick):
                version.serve(random.Random(1), 2000)
            checked = watch.check(0.0, rules, slow.window(), quick.window(), None)
        assert [each.standing for each in checked] == [standing, Standing.BROKEN]
    with pytest.raises(ValueError, match="p99<2x compares at steps up to 50%"):
        start_rollout(4, (60, 100), EVERY_S, "errors<1% p99<2x", FORMER)
    assert start_rollout(4, (60, 100), EVERY_S, "errors<1% p99<20ms", FORMER)


def held(rollout: Rollout, standing: Standing = Standing.HOLDS) -> list[Checked]:
    return [Checked(rule, standing, "") for rule in rollout.rules]


def test_steps_take_their_time_and_lead_to_the_end() -> None:
    rollout = begun()
    assert next_state(rollout, held(rollout), EVERY_S - 1) is rollout
    percents = [rollout.percent]
    while not rollout.is_over:
        rollout = next_state(rollout, held(rollout), EVERY_S)
        percents.append(rollout.percent)
    assert percents == [10, 50, 100, 100]
    assert rollout.state == DONE
    for state in (PAUSED, DONE, BACK, ABORTED):
        other = begun(state=state)
        assert next_state(other, held(other, Standing.BROKEN), EVERY_S) is other


def test_a_step_moves_callers_only_to_the_version() -> None:
    former = make_traffic({1: 30, 2: 70, 5: 0}, "header:x-user")
    keys = [key_of(b"%d" % number) for number in range(3000)]
    before = [choose_version("m", key, [(1, 30), (2, 70)]) for key in keys]
    for step, percent in enumerate((1, 10, 50)):
        rollout = replace(start_rollout(4, (1, 10, 50, 100), 1.0, RULES, former), step=step)
        weights = [each for each in rollout.traffic().weights if each[1]]
        after = [choose_version("m", key, weights) for key in keys]
        assert {now for was, now in zip(before, after, strict=True) if was != now} <= {4}
        assert after.count(4) / len(keys) == pytest.approx(percent / 100, abs=0.03)
        before = after


def test_weights_are_within_their_bounds() -> None:
    former = make_traffic({1: 1_000_000, 2: 1})
    weights = dict(start_rollout(4, (1, 100), 1.0, RULES, former).traffic().weights)
    assert weights[1] == 1_000_000
    assert weights[4] / weights[1] == pytest.approx(1 / 99, rel=1e-3)
    assert weights[2] == 1


def test_a_rollout_is_written_and_read() -> None:
    for state in (RUNNING, PAUSED, DONE, BACK, ABORTED):
        rollout = begun(state=state, step=1, reason="because")
        assert read_rollout(rollout.document()) == rollout
    document = begun().document()
    for name, value in (("step", 3), ("state", "lost"), ("to", 0), ("steps", [1]), ("if", "")):
        with pytest.raises(ValueError):
            read_rollout(document | {name: value})


def test_a_version_that_has_all_requests_needs_no_rollout() -> None:
    with pytest.raises(ValueError, match="all requests go to version 3 already"):
        start_rollout(3, STEPS, EVERY_S, RULES, FORMER)
