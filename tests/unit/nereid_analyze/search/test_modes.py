import pytest

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.search.modes import BRUTE, OPTUNA, QUICK, ModeResult, ModeRules, search_by_mode
from nereid_analyze.search.sweep import SweepRules
from nereid_analyze.search.trial import CandidateError, Trial, resolve
from nereid_perf.measurement import Measurement
from tests.support.measurements import measured
from tests.support.simulated_server import SimulatedModel, SimulatedServer, settings_of


def _server(seed: int = 1) -> SimulatedServer:
    models = {"mlp": SimulatedModel(150, 12)}
    settings = settings_of("mlp", instances=3, batches=(1, 4, 8, 16), delays=(0,))
    return SimulatedServer(models, settings, cores=4, front_us=20, seed=seed)


def _search(server: SimulatedServer, mode: str, goal: Goal, rules: ModeRules) -> ModeResult:
    return resolve(search_by_mode(mode, server.space, goal, server.defaults, rules), server.measure)


def test_brute_measures_every_candidate_at_each_level() -> None:
    server = _server()
    rules = ModeRules(sweep=SweepRules(listed=(1, 8)), rounds=1)
    result = _search(server, BRUTE, Goal(), rules)
    swept = server.measured[: 2 * server.space.size]
    assert {each.candidate for each in swept} == set(server.space.all())
    assert {each.level.value for each in swept} == {1, 8}
    assert len(result.evaluations) == server.space.size


def test_doubling_ends_where_rates_do_not_grow() -> None:
    server = _server()
    _search(server, BRUTE, Goal(), ModeRules(sweep=SweepRules(most=1024), rounds=1))
    levels = [
        each.level.value for each in server.measured if each.candidate == server.space.default
    ]
    # One instance with batches of 8 is full with 8 to 16 in flight; four more show it.
    assert 64 <= max(levels) <= 256


def test_a_constraint_is_searched_between_the_levels() -> None:
    server = _server()
    goal = Goal(constraints=(Constraint("perf_latency_p99", most=4),))
    result = _search(server, BRUTE, goal, ModeRules(sweep=SweepRules(), rounds=1))
    levels = {
        each.level.value for each in server.measured if each.candidate == server.space.default
    }
    assert any(level not in {2.0**number for number in range(11)} for level in levels)
    assert result.finalists[result.winner].is_kept


@pytest.mark.parametrize("mode", [QUICK, OPTUNA])
def test_modes_that_choose_find_a_candidate_near_the_best(mode: str) -> None:
    server = _server()
    rules = ModeRules(seed=3, rounds=1, uses_formula=True)
    result = _search(server, mode, Goal(), rules)
    best = max(server.best_rate(each, None) for each in server.space.all())
    chosen = result.finalists[result.winner].candidate
    assert server.best_rate(chosen, None) >= 0.9 * best


@pytest.mark.parametrize("mode", [QUICK, OPTUNA])
def test_the_same_seed_makes_the_same_trials(mode: str) -> None:
    servers = _server(), _server()
    for server in servers:
        _search(server, mode, Goal(), ModeRules(seed=5, rounds=1))
    assert servers[0].measured == servers[1].measured


def test_optuna_ends_without_progress() -> None:
    server = _server()
    rules = ModeRules(seed=1, rounds=1, least_trials=5, most_trials=100, patience=3,
                      most_share=1.0, least_share=1.0, sweeps_tops=False)  # fmt: skip
    result = _search(server, OPTUNA, Goal(), rules)
    assert len(result.samples) < 100


def test_a_default_that_cannot_be_measured_is_an_error() -> None:
    def fail(_trial: Trial) -> Measurement:
        raise CandidateError("no")

    server = _server()
    search = search_by_mode(BRUTE, server.space, Goal(), server.defaults, ModeRules())
    with pytest.raises(CandidateError, match="present configuration"):
        resolve(search, fail)


def test_other_batch_sizes_are_for_the_tables_alone() -> None:
    server = _server()
    rules = ModeRules(sweep=SweepRules(listed=(4,), batch_sizes=(2, 4)), rounds=1)
    result = _search(server, BRUTE, Goal(), rules)
    assert {each.trial.batch_size for each in result.samples} == {2, 4}
    assert {each.trial.batch_size for f in result.finalists for each in f.samples} == {2}


@pytest.mark.parametrize("mode", [BRUTE, QUICK])
def test_beside_a_default_that_serves_nothing_rates_still_count(mode: str) -> None:
    server = _server()

    def measure(trial: Trial) -> Measurement:
        if trial.candidate == server.space.default:
            return measured(trial.level, [], failures={"overloaded": 10})
        return server.measure(trial)

    rules = ModeRules(sweep=SweepRules(listed=(8,)))
    search = search_by_mode(mode, server.space, Goal(), server.defaults, rules)
    result = resolve(search, measure)
    best = max(server.capacity(each, 8) for each in server.space.all())
    assert server.capacity(result.finalists[result.winner].candidate, 8) >= 0.9 * best
