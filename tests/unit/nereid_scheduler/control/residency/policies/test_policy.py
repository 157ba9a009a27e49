"""Which models are in memory: each event, and what follows from it."""

import pytest

from nereid_scheduler.control.residency.policies.model_memory import Status
from nereid_scheduler.control.residency.policies.policy import (
    Actions,
    Load,
    Residency,
    Usage,
)

A = {"a": {"cpu": 1}}
AB = {"a": {"cpu": 1}, "b": {"cpu": 1}}
IDLE: dict[str, Usage] = {}


def used_at(**times: float) -> dict[str, Usage]:
    return {name: Usage(at) for name, at in times.items()}


def residency(budget: int = 2, *executors: str) -> Residency:
    made = Residency({"cpu": budget})
    for each in executors or ("a",):
        made.add_executor(each, IDLE)
    return made


def load(of: Residency, *models: str, executor: str = "a") -> None:
    for each in models:
        needs = {executor: {"cpu": 1}}
        assert of.request(each, needs, IDLE).loads == [Load(each, executor)]
        of.loaded(each, {}, IDLE)


def test_without_budgets_every_model_is_loaded_on_all_executors() -> None:
    of = Residency({})
    assert of.request("m", {}, IDLE) == Actions([Load("m", "")])
    assert of.status("m") is Status.LOADING
    assert of.request("m", {}, IDLE) == Actions()
    assert of.loaded("m", {"a": {"cpu": 10**12}}, IDLE) == Actions()
    assert of.status("m") is Status.RESIDENT


def test_models_are_packed_onto_the_first_executor_that_has_enough() -> None:
    of = residency(2, "b", "a")
    for model, executor in (("m", "a"), ("n", "a"), ("o", "b")):
        assert of.request(model, AB, IDLE).loads == [Load(model, executor)]
    assert of.memory.used("a", "cpu") == 2
    assert of.executors_of("o") == ("b",)
    assert of.executors_of("unknown") == ()


def test_the_least_recently_used_model_makes_way() -> None:
    of = residency()
    load(of, "m", "n")
    actions = of.request("o", A, used_at(m=2, n=1))
    assert actions == Actions(unloads=["n"])
    assert of.waiting
    # Its memory is not free before it is gone.
    assert of.request("o", A, IDLE) == Actions()
    assert of.retry(IDLE) == Actions()
    assert of.unloaded("n", IDLE).loads == [Load("o", "a")]
    assert not of.waiting


def test_the_least_popular_model_makes_way_however_recently_it_was_used() -> None:
    of = residency(3, "a", "b")
    load(of, "m", "n", "o")
    popularity = {"m": Usage(1, popularity=2.5), "n": Usage(3, popularity=0.5), "o": Usage(2)}
    assert of.request("p", {"a": {"cpu": 2}}, popularity).unloads == ["o", "n"]


def test_the_executor_whose_victims_are_less_popular_is_chosen() -> None:
    of = residency(1, "a", "b")
    load(of, "m")
    load(of, "n", executor="b")
    popularity = {"m": Usage(1, popularity=2), "n": Usage(2, popularity=1)}
    assert of.request("o", AB, popularity).unloads == ["n"]


def test_where_several_could_make_way_the_longest_unused_does() -> None:
    of = residency(1, "a", "b")
    assert of.request("m", AB, IDLE).loads == [Load("m", "a")]
    assert of.request("n", AB, IDLE).loads == [Load("n", "b")]
    of.loaded("m", {}, IDLE)
    of.loaded("n", {}, IDLE)
    assert of.request("o", AB, used_at(m=2, n=1)).unloads == ["n"]
    # It goes where the other made way, even if another place becomes free before.
    assert of.unloaded("m", IDLE).loads == []
    assert of.unloaded("n", IDLE).loads == [Load("o", "b")]


def test_models_in_use_and_pinned_ones_never_make_way() -> None:
    of = residency(3)
    of.pin("p", {"a": {"cpu": 1}})
    load(of, "m", "n")
    busy = {"m": Usage(1, busy=True), "n": Usage(2, busy=True)}
    assert of.request("o", A, busy) == Actions()
    assert of.waiting
    assert of.retry(busy) == Actions()
    assert of.retry(busy | {"n": Usage(2)}).unloads == ["n"]


def test_a_model_too_large_for_its_budget_is_refused() -> None:
    of = residency(3)
    of.pin("p", {"a": {"cpu": 2}})
    (refusal,) = of.request("m", {"a": {"cpu": 2, "gpu 0": 5}}, IDLE).refusals
    assert refusal.model == "m"
    assert refusal.reason == (
        "it needs 2 bytes of cpu on executor 'a', whose budget is 3, of which 2 are taken by models"
        " that stay loaded"
    )
    assert of.status("m") is Status.OUT
    assert not of.waiting
    (refusal,) = residency(3).request("m", {"a": {"cpu": 4}}, IDLE).refusals
    assert refusal.reason.endswith("whose budget is 3")


def test_what_fits_beside_models_that_are_kept() -> None:
    of = residency(2, "a", "b")
    of.remove_executor("b", IDLE)
    load(of, "m", "n")
    busy = {"m": Usage(busy=True), "n": Usage(busy=True)}
    assert of.request("o", A, busy) == Actions()
    assert of.fits_beside("o", {"m", "o"})
    assert not of.fits_beside("o", {"m", "n", "o"})
    # Where it could be there is no executor now.
    assert of.request("p", {"b": {"cpu": 1}}, busy) == Actions()
    assert of.fits_beside("p", {"m", "n"})


def test_what_models_leave_of_the_budgets() -> None:
    of = Residency({"cpu": 5, "gpu": 3})
    of.add_executor("a", IDLE)
    assert of.memory.free("a") == {}
    load(of, "m")
    of.pin("p", {"a": {"cpu": 2, "gpu 1": 1}, "b": {"cpu": 1}})
    assert of.memory.free("a") == {"cpu": 2, "gpu 1": 2}
    # What turned out to be larger.
    of.pin("q", {"a": {"cpu": 9}})
    assert of.memory.free("a") == {"cpu": 0, "gpu 1": 2}
    unlimited = Residency({"gpu": 3})
    unlimited.add_executor("a", IDLE)
    load(unlimited, "m")
    assert unlimited.memory.free("a") == {}


def test_first_come_first_served() -> None:
    of = residency(2)
    load(of, "m", "n")
    assert of.request("large", {"a": {"cpu": 2}}, used_at(m=1, n=2)).unloads == ["m", "n"]
    # What makes way for the large one is not for others, though it would be enough for them.
    assert of.request("small", A, IDLE) == Actions()
    assert of.unloaded("m", IDLE) == Actions()
    assert of.unloaded("n", IDLE).loads == [Load("large", "a")]
    assert of.loaded("large", {}, {"large": Usage(busy=True)}) == Actions()
    assert of.retry(IDLE).unloads == ["large"]


def test_a_model_that_is_requested_while_it_makes_way_comes_back() -> None:
    of = residency(1)
    load(of, "m")
    assert of.request("n", A, IDLE).unloads == ["m"]
    assert of.request("m", A, IDLE) == Actions()
    assert of.unloaded("m", IDLE).loads == [Load("n", "a")]
    assert of.status("m") is Status.WAITING
    assert of.loaded("n", {}, IDLE).unloads == ["n"]
    assert of.unloaded("n", IDLE).loads == [Load("m", "a")]


def test_a_model_that_turns_out_larger_has_others_make_way() -> None:
    of = residency(3)
    load(of, "m", "n")
    assert of.request("o", A, IDLE).loads == [Load("o", "a")]
    actions = of.loaded("o", {"a": {"cpu": 2}}, used_at(m=2, n=1, o=3))
    assert actions.unloads == ["n"]
    assert of.memory.used("a", "cpu") == 4
    assert of.unloaded("n", IDLE) == Actions()


def test_devices_have_budgets_of_their_own() -> None:
    of = Residency({"gpu": 2, "gpu 1": 1})
    of.add_executor("a", IDLE)
    load_of = of.request
    assert load_of("m", {"a": {"gpu 0": 2, "cpu": 9}}, IDLE).loads
    assert load_of("n", {"a": {"gpu 1": 1}}, IDLE).loads
    for each in ("m", "n"):
        of.loaded(each, {}, IDLE)
    # What is on another device would make no difference.
    assert load_of("o", {"a": {"gpu 1": 1}}, used_at(m=1, n=2)).unloads == ["n"]


def test_a_failed_load_leaves_its_memory() -> None:
    of = residency(1)
    assert of.request("m", A, IDLE).loads
    assert of.request("n", A, IDLE) == Actions()
    assert of.load_failed("m", IDLE).loads == [Load("n", "a")]
    assert of.status("m") is Status.OUT
    assert of.load_failed("unknown", IDLE) == Actions()
    # Something else had it unloaded.
    assert of.unloaded("m", IDLE) == Actions()


def test_executors_come_and_go() -> None:
    of = residency(1, "a")
    assert of.request("m", {"c": {"cpu": 1}}, IDLE) == Actions()
    assert of.add_executor("c", IDLE).loads == [Load("m", "c")]
    of.loaded("m", {}, IDLE)
    load(of, "n")
    of.pin("p", {"c": {"cpu": 0}})
    assert of.request("o", A, IDLE).unloads == ["n"]
    assert of.remove_executor("a", IDLE) == Actions()
    # It waits for an executor that can have it.
    assert of.status("o") is Status.WAITING
    assert of.status("n") is Status.OUT
    assert of.remove_executor("c", IDLE) == Actions()
    assert (of.status("m"), of.status("p")) == (Status.OUT, Status.RESIDENT)
    assert of.add_executor("a", IDLE).loads == [Load("o", "a")]


def test_what_a_model_needs_is_known_anew_while_it_waits() -> None:
    of = residency(1)
    assert of.request("m", {}, IDLE) == Actions()
    of.add_executor("b", IDLE)
    assert of.request("m", {"b": {"cpu": 1}}, IDLE).loads == [Load("m", "b")]
    load(of, "n")
    assert of.request("o", A, IDLE).unloads == ["n"]
    # It cannot be there any more; what made way is for others.
    assert of.request("o", {"b": {"cpu": 1}}, {"m": Usage(busy=True)}) == Actions()
    assert of.request("p", A, IDLE) == Actions()
    assert of.unloaded("n", {"m": Usage(busy=True)}).loads == [Load("p", "a")]
    assert of.load_failed("m", IDLE).loads == [Load("o", "b")]


def test_a_model_on_two_executors_survives_one() -> None:
    of = residency(1, "a", "b")
    assert of.request("m", AB, IDLE).loads
    of.loaded("m", {"a": {"cpu": 1}, "b": {"cpu": 1}}, IDLE)
    of.remove_executor("a", IDLE)
    assert (of.status("m"), of.executors_of("m")) == (Status.RESIDENT, ("b",))


def test_models_are_forgotten() -> None:
    of = residency(1)
    load(of, "m")
    assert of.request("n", A, {"m": Usage(busy=True)}) == Actions()
    assert of.request("o", A, {"m": Usage(busy=True)}) == Actions()
    of.forget("n", {"m": Usage(busy=True)})
    assert of.forget("m", IDLE).loads == [Load("o", "a")]
    assert of.status("m") is Status.OUT


def test_a_pinned_model_may_be_unloaded_by_its_clients() -> None:
    of = residency(1)
    of.pin("p", {"a": {"cpu": 1}})
    assert of.request("m", A, IDLE).refusals
    assert of.unloaded("p", IDLE) == Actions()
    assert of.request("m", A, IDLE).loads == [Load("m", "a")]


def test_a_model_that_is_lost_while_it_makes_way_comes_back() -> None:
    of = residency(1, "a", "b")
    load(of, "m")
    assert of.request("p", {"b": {"cpu": 1}}, IDLE).loads == [Load("p", "b")]
    busy = {"p": Usage(busy=True)}
    assert of.loaded("p", {}, busy) == Actions()
    assert of.request("n", A, busy).unloads == ["m"]
    assert of.request("m", AB, busy) == Actions()
    assert of.remove_executor("a", busy) == Actions()
    assert of.waiting == ["n", "m"]
    # That it was unloaded there is known only now.
    assert of.unloaded("m", busy) == Actions()
    assert of.waiting == ["n", "m"]
    assert of.retry(IDLE).unloads == ["p"]
    assert of.unloaded("p", IDLE).loads == [Load("m", "b")]
    assert of.unloaded("m", IDLE) == Actions()
    assert (of.status("m"), of.executors_of("m")) == (Status.LOADING, ("b",))


def test_events_in_an_impossible_order_are_bugs() -> None:
    of = residency()
    load(of, "m")
    with pytest.raises(KeyError):
        of.loaded("unknown", {}, IDLE)
    # A report that comes again changes nothing.
    assert of.loaded("m", {}, IDLE) == Actions()


def test_a_popular_model_remains_while_a_less_popular_one_is_in_use() -> None:
    of = residency()
    load(of, "popular", "other")
    in_use = {"popular": Usage(1, popularity=3), "other": Usage(2, busy=True, popularity=1)}
    assert of.request("o", A, in_use) == Actions()
    idle = in_use | {"other": Usage(3, popularity=1)}
    assert of.retry(idle).unloads == ["other"]


def test_a_popular_model_remains_while_a_less_popular_one_is_loaded() -> None:
    of = residency()
    load(of, "popular")
    of.request("other", A, IDLE)
    assert of.request("o", A, {"popular": Usage(1, popularity=3)}) == Actions()
    assert of.retry({"popular": Usage(1, popularity=3)}, stalled=True) == Actions()


@pytest.mark.parametrize(
    ("usage", "stalled"),
    [
        # It does not come to an end.
        (Usage(2, busy=True, popularity=1), True),
        # It waits for the ensemble that the other one is to be loaded for.
        (Usage(2, busy=True, popularity=1, needed_by_ensemble=True), False),
        # It is as popular.
        (Usage(2, busy=True, popularity=3), False),
    ],
)
def test_a_popular_model_makes_way(usage: Usage, stalled: bool) -> None:
    of = residency()
    load(of, "popular", "other")
    idle = of.request("o", A, {"popular": Usage(1, busy=True), "other": usage})
    assert idle == Actions()
    usages = {"popular": Usage(1, popularity=3), "other": usage}
    assert of.retry(usages, stalled=stalled).unloads == ["popular"]


def test_a_pinned_model_in_use_is_not_waited_for() -> None:
    of = residency()
    of.pin("p", {"a": {"cpu": 1}})
    load(of, "popular")
    usages = {"p": Usage(1, busy=True), "popular": Usage(1, popularity=3)}
    assert of.request("o", A, usages).unloads == ["popular"]


def test_a_popular_model_remains_while_others_are_about_to_be_loaded() -> None:
    of = residency()
    load(of, "popular", "other")
    usages = {"popular": Usage(1, popularity=3), "other": Usage(2, popularity=1)}
    assert of.request("o", A, usages).unloads == ["other"]
    assert of.request("p", A, usages) == Actions()
    assert of.unloaded("other", usages).loads == [Load("o", "a")]
    assert of.loaded("o", {}, usages).unloads == ["o"]
