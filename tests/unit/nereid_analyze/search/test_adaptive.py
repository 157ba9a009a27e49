from collections.abc import Callable
from itertools import product

import pytest

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.search.adaptive import AdaptiveResult, AdaptiveRules, search_adaptively
from nereid_analyze.search.inner import InnerRules, evaluate
from nereid_analyze.search.trial import CandidateError, Trial, resolve
from nereid_analyze.space.candidate import MAX_BATCH, Candidate, Setting
from nereid_analyze.space.space import Space
from nereid_perf.measurement import Measurement
from tests.support.measurements import measured
from tests.support.simulated_server import SimulatedModel, SimulatedServer, settings_of


def _mlp(seed: int) -> SimulatedServer:
    models = {"mlp": SimulatedModel(150, 12, fill=0.5)}
    return SimulatedServer(models, settings_of("mlp"), cores=2, front_us=60, seed=seed)


def _python(seed: int) -> SimulatedServer:
    models = {"python": SimulatedModel(1500, 100, power=0.9, fill=1)}
    return SimulatedServer(models, settings_of("python"), cores=4, front_us=30, seed=seed)


def _resnet(seed: int) -> SimulatedServer:
    models = {"resnet50": SimulatedModel(3000, 14_000, power=0.97, threaded=0.9)}
    settings = settings_of(
        "resnet50", batches=(1, 2, 4, 8, 16), delays=(0, 1000), threads=(1, 2, 4)
    )
    return SimulatedServer(models, settings, cores=4, front_us=30, seed=seed)


def _ensemble(seed: int) -> SimulatedServer:
    models = {"a": SimulatedModel(200, 40), "b": SimulatedModel(800, 150, power=0.95)}
    settings = (
        *settings_of("a", instances=2, batches=(4, 8, 16), delays=(0, 1000)),
        *settings_of("b", instances=3, batches=(4, 8, 16), delays=(0, 1000)),
    )
    return SimulatedServer(models, settings, cores=4, front_us=80, seed=seed)


_SERVERS: dict[str, tuple[Callable[[int], SimulatedServer], float]] = {
    "mlp": (_mlp, 5),
    "python": (_python, 20),
    "resnet50": (_resnet, 200),
    "ensemble": (_ensemble, 30),
}


def _goal(most_ms: float | None) -> Goal:
    if most_ms is None:
        return Goal()
    return Goal(constraints=(Constraint("perf_latency_p99", most=most_ms),))


def _search(server: SimulatedServer, goal: Goal, seed: int) -> AdaptiveResult:
    search = search_adaptively(server.space, goal, server.defaults, AdaptiveRules(seed=seed))
    return resolve(search, server.measure)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1,), pytest.param((2, 3, 4), marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("name", "with_target"),
    [
        # Half of the time of all of them.
        pytest.param(*case, marks=[pytest.mark.nightly] if case == ("ensemble", True) else [])
        for case in product(_SERVERS, (True, False))
    ],
)
def test_within_5_percent_of_all_with_a_quarter_of_the_measurements(
    name: str, with_target: bool, seeds: tuple[int, ...]
) -> None:
    make, most_ms = _SERVERS[name]
    goal = _goal(most_ms if with_target else None)
    exhaustive = make(0)
    for candidate in exhaustive.space.all():
        resolve(
            evaluate(candidate, goal, InnerRules(), 500 if with_target else 8), exhaustive.measure
        )
    best = max(exhaustive.best_rate(each, goal.target_us) for each in exhaustive.space.all())
    for seed in seeds:
        server = make(seed)
        result = _search(server, goal, seed)
        chosen = result.finalists[result.winner].candidate
        assert server.best_rate(chosen, goal.target_us) >= 0.95 * best
        assert len(server.measured) <= len(exhaustive.measured) / 4


def test_the_same_seed_and_measurements_make_the_same_trials() -> None:
    first, second = _mlp(7), _mlp(7)
    a, b = _search(first, _goal(5), 3), _search(second, _goal(5), 3)
    assert first.measured == second.measured
    assert a.winner == b.winner
    assert a.sureness == b.sureness


def test_it_is_surer_of_what_it_has_measured_than_of_what_it_has_not() -> None:
    result = _search(_mlp(1), _goal(None), 1)
    assert result.sureness > 0.8
    assert result.times["mlp"].fixed_us == pytest.approx(150, rel=0.4)
    assert result.times["mlp"].row_us == pytest.approx(12, rel=0.3)
    (batches,) = [each for each in result.effects if each.name == MAX_BATCH]
    rates = {value: rate for value, rate, _ in batches.rates}
    assert rates[64] > 1.5 * rates[1]


def test_candidates_that_cannot_be_loaded_are_no_winners() -> None:
    models = {"mlp": SimulatedModel(150, 12, most_batch=16)}
    server = SimulatedServer(models, settings_of("mlp"), cores=2, seed=1)
    result = _search(server, _goal(None), 1)
    chosen = result.finalists[result.winner].candidate
    assert chosen.value("mlp", MAX_BATCH, 0) == 16
    assert any(each.failure == "out of memory" for each in result.evaluations)


def test_a_default_that_is_best_wins() -> None:
    server = _mlp(1)
    settings = tuple(each for each in server.settings if each.name == MAX_BATCH)
    # Alone the smallest batches: there is nothing to be gained.
    server.settings = (settings[0].__class__("mlp", MAX_BATCH, (1, 8), 8),)
    result = _search(server, _goal(None), 1)
    assert result.winner == 0


def test_bad_candidates_get_short_windows() -> None:
    server = _mlp(1)
    result = _search(server, _goal(5), 1)
    raced = [each for each in result.evaluations if each.is_raced]
    assert raced
    for each in raced:
        assert sum(sample.trial.seconds for sample in each.samples) <= 0.75


def test_finalists_are_measured_in_turns() -> None:
    server = _mlp(1)
    result = _search(server, _goal(None), 1)
    rounds = len(result.finalists[0].rates)
    size = len(result.finalists)
    # Two more rounds, of the best and the default, follow.
    last = [each.candidate for each in server.measured[-rounds * size - 4 : -4]]
    for number in range(rounds):
        assert len(set(last[number * size : (number + 1) * size])) == size


def test_a_server_that_fails_whatever_is_asked_ends_the_search() -> None:
    def fail(_trial: Trial) -> Measurement:
        raise CandidateError("no")

    server = _mlp(1)
    search = search_adaptively(
        Space(settings_of("mlp", instances=2, batches=(1, 8), delays=(0,))),
        Goal(),
        server.defaults,
        AdaptiveRules(),
    )
    result = resolve(search, fail)
    assert not result.finalists[result.winner].is_kept
    assert result.finalists[0].candidate == Candidate(
        (("mlp", "instance_group.count", 1), ("mlp", MAX_BATCH, 8),
         ("mlp", "dynamic_batching.max_queue_delay_microseconds", 0))
    )  # fmt: skip


def test_a_default_that_keeps_no_rate_is_measured_at_its_saturation() -> None:
    server = _mlp(1)

    def measure(trial: Trial) -> Measurement:
        found = server.measure(trial)
        if trial.candidate != server.space.default:
            return found
        return measured(trial.level, [50_000] * 20 * int(trial.seconds * 4))

    search = search_adaptively(server.space, _goal(5), server.defaults, AdaptiveRules(seed=1))
    result = resolve(search, measure)
    default = result.finalists[0]
    assert default.level.kind == "concurrency"
    assert default.rate > 0
    assert not default.is_kept
    assert result.winner > 0
    assert all(trial.level.value > 0 for trial in server.measured)


def test_equal_candidates_leave_the_default() -> None:
    """One instance of many is as good as another: only noise tells them apart."""
    settings = (Setting("mlp", "parameters.any", tuple(range(12)), 0),)
    wins = 0
    for seed in range(10):
        models = {"mlp": SimulatedModel(150, 12)}
        server = SimulatedServer(models, settings, noise=0.05, seed=seed)
        wins += _search(server, _goal(None), seed).winner > 0
    assert wins <= 2
