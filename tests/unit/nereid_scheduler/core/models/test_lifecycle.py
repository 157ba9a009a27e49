"""A version's states, from its first load to its unload."""

import pytest

from nereid_scheduler.core.models.lifecycle import (
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


def report(life: VersionLife, *events: tuple[str, LoadStatus | None, str]) -> None:
    """What executors report; None: the executor has left."""
    for executor, status, reason in events:
        if status is None:
            life.forget_executor(executor)
        else:
            life.report(executor, status, reason)


def loading(executor: str) -> tuple[str, LoadStatus, str]:
    return executor, LOADING, ""


def up(executor: str) -> tuple[str, LoadStatus, str]:
    return executor, UP, ""


def failed(executor: str, reason: str = "no GPU") -> tuple[str, LoadStatus, str]:
    return executor, FAILED, reason


def left(executor: str) -> tuple[str, None, str]:
    return executor, None, ""


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        # A new load waits for an executor, and the first one that has it makes it ready.
        ([], VersionState.LOADING, ""),
        ([loading("a"), loading("b")], VersionState.LOADING, ""),
        ([loading("a"), loading("b"), up("b")], VersionState.READY, ""),
        # One failure is not the end while another is loading; of several the first counts.
        ([loading("a"), failed("b")], VersionState.LOADING, ""),
        ([failed("a", "first"), failed("b", "second")], VersionState.UNAVAILABLE, "first"),
        ([failed("a"), loading("b")], VersionState.LOADING, ""),
        (
            [loading("a"), ("b", LoadStatus.LOADING, "installing 2 packages")],
            VersionState.LOADING,
            "installing 2 packages",
        ),
        ([failed("a"), loading("b"), up("b")], VersionState.READY, ""),
        ([failed("a"), loading("b"), left("b")], VersionState.UNAVAILABLE, "no GPU"),
        ([failed("a"), left("a"), left("unknown")], VersionState.UNAVAILABLE, "no GPU"),
        # It is ready beyond its last executor, until the next one fails.
        ([up("a"), left("a")], VersionState.READY, NO_INSTANCE),
        ([up("a"), left("a"), loading("b")], VersionState.READY, NO_INSTANCE),
        ([up("a"), left("a"), loading("b"), up("b")], VersionState.READY, ""),
        ([up("a"), failed("b")], VersionState.READY, ""),
        ([up("a"), failed("b"), left("a")], VersionState.READY, NO_INSTANCE),
        (
            [up("a"), failed("b"), left("a"), loading("c"), failed("c", "out of memory")],
            VersionState.UNAVAILABLE,
            "no GPU",
        ),
    ],
)
def test_the_state_follows_from_what_executors_report(
    life: VersionLife, events: list[tuple[str, LoadStatus | None, str]], state: object, reason: str
) -> None:
    report(life, *events)
    assert (life.state, life.reason) == (state, reason)
    assert life.serving is (state is VersionState.READY and not reason)


def test_an_executor_that_failed_is_known(life: VersionLife) -> None:
    report(life, loading("a"), failed("b"))
    assert [life.failed_on(each) for each in "abc"] == [False, True, False]


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
