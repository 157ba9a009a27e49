"""A version's states, from its first load to its unload."""

import pytest

from nereid.services.scheduler.models.lifecycle import (
    NO_INSTANCE,
    TRANSITIONS,
    LoadStatus,
    VersionLife,
    VersionState,
    reason_of,
)

LOADING, UP, FAILED = LoadStatus.LOADING, LoadStatus.UP, LoadStatus.FAILED


@pytest.fixture
def life() -> VersionLife:
    life = VersionLife()
    assert life.state is VersionState.UNKNOWN
    life.await_executor()
    return life


def test_a_new_load_waits_for_an_executor(life: VersionLife) -> None:
    assert (life.state, life.reason, life.serving) == (VersionState.LOADING, "", False)


def test_the_first_executor_that_has_it_makes_it_ready(life: VersionLife) -> None:
    life.report("a", LOADING)
    life.report("b", LOADING)
    assert life.state is VersionState.LOADING
    life.report("b", UP)
    assert (life.state, life.reason, life.serving) == (VersionState.READY, "", True)


def test_one_failure_is_not_the_end_while_another_is_loading(life: VersionLife) -> None:
    life.report("a", LOADING)
    life.report("b", FAILED, "no such file")
    assert life.state is VersionState.LOADING
    assert life.failed_on("b")
    assert not life.failed_on("a")
    assert not life.failed_on("c")


def test_when_all_have_failed_the_first_failure_is_the_reason(life: VersionLife) -> None:
    life.report("a", FAILED, "first")
    life.report("b", FAILED, "second")
    assert (life.state, life.reason) == (VersionState.UNAVAILABLE, "first")


def test_another_executor_may_succeed_after_a_failure(life: VersionLife) -> None:
    life.report("a", FAILED, "no GPU")
    life.report("b", LOADING)
    assert (life.state, life.reason) == (VersionState.LOADING, "")
    life.report("b", UP)
    assert life.state is VersionState.READY


def test_ready_survives_the_last_executor(life: VersionLife) -> None:
    life.report("a", UP)
    life.forget_executor("a")
    assert (life.state, life.reason) == (VersionState.READY, NO_INSTANCE)
    assert not life.serving
    life.report("b", LOADING)
    assert life.state is VersionState.READY
    life.report("b", UP)
    assert (life.reason, life.serving) == ("", True)


def test_ready_ends_with_a_failure_while_no_other_executor_has_it(life: VersionLife) -> None:
    life.report("a", UP)
    life.report("b", FAILED, "no GPU")
    assert life.state is VersionState.READY
    life.forget_executor("a")
    assert (life.state, life.reason) == (VersionState.READY, NO_INSTANCE)
    life.report("c", LOADING)
    life.report("c", FAILED, "out of memory")
    assert (life.state, life.reason) == (VersionState.UNAVAILABLE, "no GPU")


def test_a_failure_counts_once_the_executor_that_was_loading_has_left(life: VersionLife) -> None:
    life.report("a", FAILED, "no GPU")
    life.report("b", LOADING)
    life.forget_executor("b")
    assert (life.state, life.reason) == (VersionState.UNAVAILABLE, "no GPU")


def test_a_failure_outlives_the_executor_that_reported_it(life: VersionLife) -> None:
    life.report("a", FAILED, "broken")
    life.forget_executor("a")
    life.forget_executor("unknown")
    assert (life.state, life.reason) == (VersionState.UNAVAILABLE, "broken")


def test_a_refusal_is_final(life: VersionLife) -> None:
    life.refuse("wrong in itself")
    life.report("a", UP)
    assert (life.state, life.reason) == (VersionState.UNAVAILABLE, "wrong in itself")
    assert life.final


@pytest.mark.parametrize(
    ("code", "text"),
    [(13, "Internal: x"), (3, "Invalid argument: x"), (12, "Unsupported: x"), (99, "Unknown: x")],
)
def test_reasons_have_tritons_form(code: int, text: str) -> None:
    assert reason_of(code, "x") == text


def test_an_unload_has_two_steps_and_nothing_reported_matters_to_it(life: VersionLife) -> None:
    life.report("a", UP)
    life.begin_unload()
    assert (life.state, life.unload_begun, life.refused) == (VersionState.UNLOADING, True, False)
    life.report("a", FAILED, "unloading")
    assert life.state is VersionState.UNLOADING
    life.end_unload()
    assert (life.state, life.reason) == (VersionState.UNAVAILABLE, "unloaded")
    assert (life.unload_begun, life.unloaded, life.refused) == (True, True, True)


def test_a_load_is_finished_when_every_executor_has_succeeded_or_failed(life: VersionLife) -> None:
    assert (life.load_finished, life.loading) == (False, False)
    life.report("a", LOADING)
    life.report("b", LOADING)
    life.report("a", UP)
    assert (life.load_finished, life.loading) == (False, True)
    life.report("b", FAILED, "no GPU")
    assert (life.load_finished, life.loading) == (True, False)


def test_only_transitions_of_the_table_are_possible(life: VersionLife) -> None:
    with pytest.raises(AssertionError, match="from UNKNOWN to UNLOADING"):
        VersionLife().begin_unload()
    life.begin_unload()
    with pytest.raises(AssertionError, match="from UNLOADING to LOADING"):
        life.await_executor()
    assert set(TRANSITIONS) == set(VersionState)


def test_the_reason_beside_ready_is_why_its_instances_could_not_be_changed(
    life: VersionLife,
) -> None:
    life.update_error = "no memory"
    assert life.reason == ""
    life.report("a", UP)
    assert (life.state, life.reason) == (VersionState.READY, "no memory")
    life.forget_executor("a")
    assert life.reason == NO_INSTANCE
