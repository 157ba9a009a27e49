"""What the reconciler does for each model, and what becomes of those who wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid_scheduler.core.models.desired_models import Reason
from nereid_scheduler.core.models.found_model import FoundModel, NotUnique, NoVersion
from nereid_scheduler.core.models.lifecycle import LoadStatus, VersionState
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override
from tests.support.scheduler.reconciler_world import ReconcilerWorld as World
from tests.support.scheduler.reconciler_world import ended, turns
from tests.support.scheduler.world import found
from tests.support.waiting import LIMIT_S

UP, FAILED = LoadStatus.UP, LoadStatus.FAILED


# ---- loads


async def test_a_model_is_found_loaded_and_kept_for_all_who_ask() -> None:
    it = World()
    it.repositories.models["m"] = found("m")
    asked = [it.ask("m", Reason.BY_NAME) for _ in range(3)]
    served = await it.loader.report(UP)
    assert [await ended(each) for each in asked] == [None] * 3
    assert it.loader.begun.empty()
    assert it.catalogue.running("m") == [served]
    # Of one outcome several may learn.
    assert await asyncio.gather(*[ended(asked[0]) for _ in range(3)]) == [None] * 3


async def test_a_load_goes_on_when_nobody_waits_for_it_any_more() -> None:
    it = World()
    gone, other = (it.ask("m", Reason.ON_DEMAND, found("m")) for _ in range(2))
    gone.cancel()
    served = await it.loader.report(UP)
    assert await ended(other) is None
    assert it.catalogue.running("m") == [served]


async def test_a_load_that_fails_is_tried_again_and_its_error_is_each_waiters() -> None:
    it = World(retries=1)
    it.repositories.models["m"] = found("m")
    asked = [it.ask("m", Reason.BY_NAME) for _ in range(2)]
    for text in ("first", "second", "third", "fourth"):
        # One that failed is loaded again for the next who asks.
        await it.loader.report(FAILED, text)
    messages = [error.message for each in asked if (error := await ended(each)) is not None]
    assert messages == [
        f"load failed for model 'm': version 1 is at UNAVAILABLE state: {text};\n"
        for text in ("second", "fourth")
    ]


async def test_a_load_that_fails_leaves_the_old_version_in_service() -> None:
    it = World()
    await it.serve("m")
    (old,) = it.catalogue.running("m")
    changed = replace(found("m"), digest=b"e", file_digests={1: b"e"})
    outcome = it.ask("m", Reason.POLLED, changed)
    await it.loader.report(FAILED, "bad")
    assert isinstance(await ended(outcome), InvalidArgument)
    assert it.catalogue.running("m") == [old]
    it.ask("m", Reason.POLLED, replace(changed, digest=b"f"))
    new = await it.loader.report(UP)
    await turns()
    assert (it.catalogue.running("m"), old.life.state) == ([new], VersionState.UNLOADING)


@pytest.mark.parametrize("serves", [False, True])
async def test_an_unload_does_not_wait_for_a_load_that_never_ends(*, serves: bool) -> None:
    it = World(retries=3, unload_patience_s=0)
    if serves:
        await it.serve("m")
    old = it.catalogue.running("m")
    changed = replace(found("m"), digest=b"e", file_digests={1: b"e"})
    it.repositories.models["m"] = changed
    load = it.ask("m", Reason.BY_NAME)
    loading = await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    unload = it.ask("m", Reason.UNLOADED)
    await turns()
    assert loading.life.state is VersionState.UNLOADING
    it.loader.waiters.notify_all()
    error = await ended(load)
    assert error is not None
    assert "version 1 is at UNLOADING state: it was unloaded while it was being loaded" in str(
        error.message
    )
    assert await ended(unload) is None
    it.loader.requests_done.set()
    await turns()
    assert it.loader.versions == []
    assert {each.life.state for each in (*old, loading)} == {VersionState.UNAVAILABLE}
    # The next load begins anew.
    again = it.ask("m", Reason.BY_NAME)
    served = await it.loader.report(UP)
    assert await ended(again) is None
    assert it.catalogue.running("m") == [served]


async def test_only_failures_that_nobody_else_reports_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = World()
    for reason in (Reason.POLLED, Reason.ON_DEMAND):
        refused = found(reason.name, error=Internal("bad"))
        assert await ended(it.ask(reason.name, reason, refused)) is not None
    # A version that fails says why itself.
    await it.serve("served")
    changed = replace(found("served"), digest=b"e", file_digests={1: b"e"})
    for model in (found("failed"), changed):
        outcome = it.ask(model.name, Reason.POLLED, model)
        await it.loader.report(FAILED, "bad")
        assert await ended(outcome) is not None
    assert [each.args[0] for each in caplog.records if isinstance(each.args, tuple)] == ["POLLED"]


async def test_the_models_of_steps_are_loaded_before_their_ensemble() -> None:
    it = World()
    it.repositories.models |= {"e": found("e", "s"), "s": found("s")}
    outcome = it.ask("e", Reason.BY_NAME)
    assert (await it.loader.report(UP)).name == "s"
    assert (await it.loader.report(UP)).name == "e"
    assert await ended(outcome) is None


async def test_what_cannot_be_read_is_refused() -> None:
    it = World()
    error = await ended(it.ask("m", Reason.BY_NAME))
    assert error is not None
    assert "failed to poll from model repository: no such model" in error.message
    assert it.catalogue.model("m") is None
    # As on Triton, a model none of whose versions is to be served is known.
    it.repositories.models["n"] = found("n", error=NoVersion("none", ()))
    assert await ended(it.ask("n", Reason.BY_NAME)) is not None
    assert it.states("n") == []
    assert it.catalogue.model("n") is not None


@pytest.mark.parametrize(
    ("error", "shown"),
    [(Internal("bad"), [VersionState.UNAVAILABLE]), (NotUnique("two have it"), [])],
)
async def test_what_cannot_be_read_at_the_start_is_shown(
    error: NereidError, shown: list[VersionState]
) -> None:
    it = World()
    assert await ended(it.ask("m", Reason.INITIAL, found("m", error=error))) is error
    assert it.states("m") == shown


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), OSError("no disk")])
async def test_a_bug_is_an_internal_error_and_stops_nothing(bug: Exception) -> None:
    it = World()
    it.repositories.models |= {"m": bug, "n": found("n")}
    bad, good = (it.ask(each, Reason.BY_NAME) for each in "mn")
    error = await ended(bad)
    assert isinstance(error, Internal)
    assert str(bug) not in error.message
    await it.loader.report(UP)
    assert await ended(good) is None


async def test_a_bug_in_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    it = World()

    async def fail(error: Exception) -> None:
        raise error

    for error in (Unavailable("refused"), RuntimeError("a bug")):
        await asyncio.wait([it.reconciler.tasks.spawn(fail(error))])
    assert [each.getMessage() for each in caplog.records] == [
        "unexpected error in a load or unload"
    ]


async def test_an_action_that_cannot_begin_ends_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = World()
    await it.serve("m")
    monkeypatch.setattr(it.loader, "unload", lambda _: 1 / 0)
    assert isinstance(await ended(it.ask("m", Reason.UNLOADED)), Internal)
    assert not it.desired.is_busy("m")


# ---- unloads


async def test_an_unload_waits_for_the_load_and_is_over_before_the_last_request() -> None:
    it = World()
    load = it.ask("m", Reason.POLLED, found("m"))
    unload = it.ask("m", Reason.UNLOADED)
    again = it.ask("m", Reason.POLLED, found("m"))
    await turns()
    assert it.states("m") == [VersionState.LOADING]
    await it.loader.report(UP)
    assert (await ended(load), await ended(unload)) == (None, None)
    new = await it.loader.report(UP)
    assert await ended(again) is None
    assert it.catalogue.running("m") == [new]


async def test_a_model_makes_way_when_its_memory_is_free() -> None:
    it = World()
    await it.serve("m")
    outcome = it.ask("m", Reason.RELEASED)
    await turns()
    assert (it.states("m"), outcome.done()) == ([VersionState.UNLOADING], False)
    it.loader.requests_done.set()
    assert await ended(outcome) is None
    assert it.states("m") == [VersionState.UNAVAILABLE]


# ---- what some schedulers have


async def test_loads_and_unloads_of_clients_are_recorded_and_end_loads_on_demand() -> None:
    it = World(alone=False)
    it.repositories.models |= {"e": found("e", "s"), "s": found("s")}
    loads = [it.ask("e", Reason.BY_NAME), it.ask("e", Reason.BY_NAME)]
    for _ in "es":
        await it.loader.report(UP)
    assert [await ended(each) for each in loads] == [None, None]
    override = it.ask("s", Reason.BY_NAME, override=Override("{}", {"f": b""}))
    await turns()
    assert await ended(it.ask("s", Reason.UNLOADED)) is None
    assert await ended(override) is None
    assert it.records.written == [
        ("loaded", "s", None, False),
        ("loaded", "e", None, True),
        ("requested", "e"),
        ("loaded", "s", "/written", True),
        ("unloaded", "s", True),
    ]
    assert dict.fromkeys(it.on_demand.calls) == {("forget", "s"): None, ("forget", "e"): None}


async def test_a_load_with_some_success_is_recorded_and_one_with_none_is_not() -> None:
    it = World(alone=False)
    it.repositories.models |= {
        "m": replace(found("m"), versions=(1, 2), file_digests={1: b"", 2: b""}),
        "n": found("n"),
    }
    some = it.ask("m", Reason.BY_NAME)
    await it.loader.report(UP)
    await it.loader.report(FAILED, "bad")
    assert await ended(some) is not None
    none = it.ask("n", Reason.BY_NAME)
    await it.loader.report(FAILED, "bad")
    assert await ended(none) is not None
    assert it.records.written == [("loaded", "m", None, True)]


async def test_a_model_that_has_changed_is_loaded_where_it_was() -> None:
    it = World(alone=False)
    outcome = it.ask("m", Reason.POLLED, found("m"))
    served = await it.loader.report(UP)
    assert await ended(outcome) is None
    assert served.hosts == frozenset({"host"})
    assert it.on_demand.calls == [("reloaded", "m")]
    assert it.records.written == []


async def test_a_step_that_cannot_be_read_is_not_loaded_on_demand_any_more() -> None:
    it = World(alone=False)
    assert await ended(it.ask("s", Reason.STEP, found("s", error=Internal("bad")))) is not None
    assert it.on_demand.calls == [("forget", "s")]


# ---- several schedulers


async def test_a_model_is_taken_over_as_the_records_say() -> None:
    it = World(alone=False)
    files = ModelRecord("files", loaded=True, files={"1/model.onnx": "digest"})
    it.records.known = {
        "recorded": ModelRecord("recorded", loaded=True),
        "files": files,
        "unloaded": ModelRecord("unloaded", loaded=False),
        "away": ModelRecord("away", loaded=True),
    }
    it.repositories.models |= {"unloaded": found("unloaded"), "other": found("other")}
    it.moves.away = {"away"}
    names = ("recorded", "files", "unloaded", "away", "other")
    asked = [it.ask(each, Reason.TAKEN_OVER, awaited_as=each) for each in names]
    taken_over = {(await it.loader.report(UP)).name for _ in range(3)}
    assert [await ended(each) for each in asked] == [None] * 5
    assert taken_over == {"recorded", "files", "other"}
    assert it.loader.begun.empty()
    assert not it.desired.awaited
    assert it.loader.changes


async def test_what_clients_do_counts_more_than_a_search_for_a_record() -> None:
    it = World(alone=False)
    it.records.readable.clear()
    search = it.ask("m", Reason.TAKEN_OVER, awaited_as="m")
    await it.records.reads.wait()
    assert await ended(it.ask("m", Reason.UNLOADED)) is None
    assert await ended(search) is None
    it.records.readable.set()
    await turns()
    assert it.loader.begun.empty()
    assert it.states("m") == []


async def test_records_that_make_no_sense_end_each_search() -> None:
    it = World(alone=False)
    it.records.known = RuntimeError("a bug")
    asked = [it.ask(each, Reason.TAKEN_OVER, awaited_as=each) for each in "mn"]
    assert [type(await ended(each)) for each in asked] == [Internal, Internal]
    assert not it.desired.awaited


async def test_a_model_is_given_away_and_forgotten_after_its_last_request() -> None:
    it = World(alone=False)
    await it.serve("m", "n")
    refused = it.ask("r", Reason.INITIAL, FoundModel("r", Path("/r"), error=Internal("bad")))
    assert await ended(refused) is not None
    it.moves.away = {"m", "r"}
    asked = [it.ask(each, Reason.MOVED) for each in ("m", "r", "nowhere")]
    assert [await ended(each) for each in asked] == [None] * 3
    await it.reconciler.finish_hand_overs(0)
    assert (it.states("m"), it.loader.limits_s) == ([VersionState.UNLOADING], [7])
    it.loader.requests_done.set()
    await it.reconciler.finish_hand_overs(LIMIT_S)
    assert [each.name for each in it.catalogue.models()] == ["n"]
    await it.reconciler.finish_hand_overs(0)


async def test_a_model_that_comes_back_while_it_is_given_away_is_kept() -> None:
    it = World(alone=False)
    await it.serve("m")
    it.moves.away = {"m"}
    await ended(it.ask("m", Reason.MOVED))
    it.moves.away = set()
    it.loader.requests_done.set()
    await it.reconciler.finish_hand_overs(LIMIT_S)
    assert it.states("m") == [VersionState.UNAVAILABLE]


async def test_a_model_that_moves_while_it_is_loaded_is_given_away() -> None:
    it = World(alone=False)
    it.repositories.models["m"] = found("m")
    load = it.ask("m", Reason.BY_NAME)
    served = await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    it.moves.away = {"m"}
    served.life.report("executor", UP)
    it.loader.waiters.notify_all()
    assert await ended(load) is None
    assert served.life.state is VersionState.UNLOADING
    # A client has loaded it, for whoever has it now.
    assert it.records.written == [("loaded", "m", None, True)]


async def test_a_model_that_moves_while_changed_files_are_loaded_is_given_away_with_both() -> None:
    it = World(alone=False)
    await it.serve("m")
    changed = replace(found("m"), digest=b"e", file_digests={1: b"e"})
    load = it.ask("m", Reason.POLLED, changed)
    new = await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    it.moves.away = {"m"}
    it.loader.requests_done.set()
    assert await ended(it.ask("m", Reason.MOVED)) is None
    await it.reconciler.finish_hand_overs(LIMIT_S)
    # Its old version has left before the new one is ready.
    assert it.loader.versions == [new]
    new.life.report("executor", UP)
    it.loader.waiters.notify_all()
    assert await ended(load) is None
    await it.reconciler.finish_hand_overs(LIMIT_S)
    assert (it.loader.versions, it.catalogue.models()) == ([], [])


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_model_that_was_given_up_is_taken_over_once_the_peers_are_known(
    *, loaded: bool
) -> None:
    it = World(alone=False)
    it.repositories.models["m"] = found("m")
    it.records.known = {"m": ModelRecord("m", loaded=loaded)}
    load = it.ask("m", Reason.INITIAL, found("m"))
    first = await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    it.desired.suspend()
    given_up = it.ask("m", Reason.MOVED)
    again = it.ask("m", Reason.TAKEN_OVER, awaited_as="m")
    assert [await ended(each) for each in (given_up, load)] == [None, None]
    assert first.life.unload_begun
    # Its requests are held, and no record is read yet.
    assert it.desired.awaited == {"m": "m"}
    assert not it.records.reads.is_set()
    it.desired.resume()
    if loaded:
        await it.loader.report(UP)
    assert await ended(again) is None
    assert it.catalogue.is_served("m") is loaded
    assert not it.desired.awaited


# ---- the end


async def test_the_end_cancels_what_is_pending_and_begins_nothing() -> None:
    it = World(alone=False)
    await it.serve("m")
    it.ask("n", Reason.INITIAL, found("n"))
    await asyncio.wait_for(it.loader.begun.get(), LIMIT_S)
    await it.reconciler.tasks.close()
    for reason in (Reason.UNLOADED, Reason.MOVED):
        it.ask("m", reason)
    await turns()
    assert (it.states("m"), it.states("n")) == ([VersionState.READY], [VersionState.LOADING])
    never = it.reconciler.tasks.spawn(it.loader.requests_done.wait())
    await asyncio.wait([never])
    assert never.cancelled()
