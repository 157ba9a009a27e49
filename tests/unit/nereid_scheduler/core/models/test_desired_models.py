"""What is desired of models, as events change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nereid.core.errors import Internal, InvalidArgument, NereidError
from nereid_scheduler.core.models.desired_models import DesiredModel, DesiredModels, Reason
from nereid_scheduler.core.models.found_model import FoundModel, NotUnique
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override

WITH_FILES = ModelRecord("m", loaded=True, by_name=False, files={"1/model.onnx": "digest"})


def found(error: NereidError | None = None, digest: bytes = b"d", path: str = "/m") -> FoundModel:
    return FoundModel("m", Path(path), versions=(1, 3), digest=digest, error=error)


def test_of_one_model_one_generation_is_due_after_another_and_of_several_all() -> None:
    desired = DesiredModels()
    first = desired.add("m", Reason.BY_NAME)
    second = desired.add("m", Reason.UNLOADED)
    other = desired.add("n", Reason.BY_NAME)
    assert desired.take_due() == [first, other]
    assert desired.take_due() == []
    desired.begin(first, finds=True)
    desired.on_found(other, [])
    assert desired.take_due() == [other]
    desired.end(first)
    assert desired.take_due() == [second]
    desired.end(second)
    assert not desired.is_busy("m")
    assert desired.is_busy("n")
    assert desired.take_due() == []


def test_who_asked_learns_once_what_became_of_it() -> None:
    asked: list[NereidError | None] = []
    called: list[None] = []
    desired = DesiredModels(on_due=lambda: called.append(None))
    for reason in (Reason.BY_NAME, Reason.MOVED):
        model = desired.add("m", reason, on_end=asked.append)
        assert called
        called.clear()
        error = Internal("bad") if reason is Reason.BY_NAME else None
        desired.take_due()
        desired.end(model, error)
        desired.end(model)
        assert asked.pop() is error
        assert not asked


def test_what_is_busy_is_not_due() -> None:
    desired = DesiredModels()
    model = desired.add("m", Reason.BY_NAME)
    desired.begin(model, finds=True)
    assert desired.take_due() == []
    desired.on_found(model, [found()])
    assert desired.take_due() == [model]


def test_a_model_moves_beside_whatever_is_done_with_it() -> None:
    desired = DesiredModels(["m"])
    model = desired.add("m", Reason.INITIAL, found())
    desired.begin(model, finds=True)
    desired.on_load_begun(model)
    moved = desired.add("m", Reason.MOVED)
    assert desired.take_due() == [moved]
    desired.end(moved)
    assert (moved.ended, model.ended, desired.requested) == (True, False, set())
    # It is loaded anew if it comes back.
    assert desired.last_loads.has_changed(found())
    assert not desired.last_loads.has_failed("m")


def test_loads_by_name_are_remembered_until_the_unload() -> None:
    desired = DesiredModels()
    desired.require(["flag"])
    bad, good = (desired.add("m", Reason.BY_NAME) for _ in range(2))
    desired.on_found(bad, [found(Internal("bad"))])
    assert desired.requested == {"flag"}
    assert desired.last_loads.refusals == {"m": "Internal: bad"}
    desired.end(bad)
    desired.on_found(good, [found()])
    assert desired.requested == {"flag", "m"}
    assert desired.last_loads.refusals == {}
    desired.on_unload(desired.add("m", Reason.RELEASED))
    assert "m" in desired.requested
    desired.on_unload(desired.add("m", Reason.UNLOADED))
    assert "m" not in desired.requested


def test_names_that_are_in_no_repository_have_no_refusal() -> None:
    desired = DesiredModels()
    model = desired.add("m", Reason.BY_NAME)
    desired.on_found(model, [FoundModel("m", error=Internal("no such model"))])
    assert desired.last_loads.refusals == {}


def test_a_load_notes_what_it_loads_and_whether_it_fails() -> None:
    desired = DesiredModels()
    model = desired.add("m", Reason.POLLED, found())
    assert desired.last_loads.has_changed(found())
    desired.on_load_begun(model)
    assert (desired.last_loads.has_changed(found()), desired.last_loads.has_failed("m")) == (
        False,
        True,
    )
    desired.last_loads.end(model.name, failed=True, retried=True)
    assert (desired.last_loads.has_changed(found()), desired.last_loads.has_failed("m")) == (
        True,
        True,
    )
    desired.on_load_begun(model)
    desired.last_loads.end(model.name, failed=False, retried=False)
    assert (desired.last_loads.has_changed(found()), desired.last_loads.has_failed("m")) == (
        False,
        False,
    )


def test_a_model_that_is_found_for_a_request_is_loaded_where_it_fits() -> None:
    desired = DesiredModels()
    model = desired.add("m", Reason.ON_DEMAND, hosts=frozenset({"e"}))
    desired.on_found(model, [found(), replace(found(), name="step")])
    assert model.found is not None
    assert model.found.hosts == frozenset({"e"})
    assert [*model.steps] == ["step"]


# ---- refusals


def refuse(
    desired: DesiredModels, reason: Reason, model: FoundModel, record: ModelRecord | None = None
) -> None:
    desired.on_refused(desired.add("m", reason, model, record=record))


def test_a_refused_model_is_not_polled_again_without_a_change() -> None:
    for reason in (Reason.INITIAL, Reason.POLLED, Reason.ON_DEMAND, Reason.STEP):
        desired = DesiredModels()
        refuse(desired, reason, found(InvalidArgument("bad")))
        assert (desired.last_loads.has_changed(found()), desired.last_loads.has_failed("m")) == (
            False,
            True,
        )
        expected = {} if reason is Reason.INITIAL else {"m": "Invalid argument: bad"}
        assert desired.last_loads.refusals == expected


def test_a_name_in_two_repositories_is_looked_at_again() -> None:
    desired = DesiredModels()
    refuse(desired, Reason.INITIAL, found(NotUnique("twice")))
    assert desired.last_loads.has_changed(found())


def test_a_model_that_clients_had_loaded_and_that_is_gone_is_shown() -> None:
    desired = DesiredModels()
    gone = FoundModel("m", error=Internal("gone"))
    refuse(desired, Reason.RECORDED, gone, record=ModelRecord("m", loaded=True))
    assert desired.last_loads.unrestored == {"m"}
    assert desired.last_loads.refusals == {"m": "Internal: gone"}
    # As soon as it is found again it is no secret any more.
    desired.on_load_begun(desired.add("m", Reason.BY_NAME, found()))
    assert (desired.last_loads.unrestored, desired.last_loads.refusals) == (set(), {})


def test_a_refused_load_by_name_was_noted_when_it_was_found() -> None:
    desired = DesiredModels()
    refuse(desired, Reason.BY_NAME, found(Internal("bad")))
    refuse(desired, Reason.BY_NAME, found())
    assert desired.last_loads.has_changed(found())


# ---- searches


def search(desired: DesiredModels) -> DesiredModel:
    model = desired.add("m", Reason.RECORDED, found(), record=WITH_FILES, awaited_as="m")
    assert model.searching
    assert desired.awaited == {"m": "m"}
    desired.take_due()
    desired.begin(model, finds=True)
    return model


def test_a_load_waits_for_a_record_unless_it_brings_a_configuration() -> None:
    desired = DesiredModels()
    recorded = search(desired)
    plain = desired.add("m", Reason.BY_NAME)
    first = desired.add("m", Reason.BY_NAME, override=Override("{}"))
    second = desired.add("m", Reason.UNLOADED)
    assert desired.take_due() == [first]
    desired.end(first)
    assert desired.take_due() == [second]
    desired.end(second)
    assert desired.take_due() == []
    desired.on_found(recorded, [found()])
    assert desired.take_due() == [recorded]
    assert not recorded.superseded
    desired.end(recorded)
    assert desired.take_due() == [plain]


def test_what_a_client_does_counts_more_than_a_record_that_cannot_be_read() -> None:
    for reason in (Reason.UNLOADED, Reason.BY_NAME):
        desired = DesiredModels()
        recorded = search(desired)
        model = desired.add("m", reason, found(), override=Override("{}"))
        assert not recorded.superseded
        if reason is Reason.UNLOADED:
            desired.on_unload(model)
        else:
            desired.on_load_begun(model)
        assert (recorded.superseded, recorded.busy, desired.awaited) == (True, False, {})
        assert desired.take_awaited_changed()
        assert not desired.take_awaited_changed()


def test_a_model_that_another_scheduler_owns_is_not_awaited() -> None:
    desired = DesiredModels()
    recorded = search(desired)
    desired.stop_awaiting(lambda name: name != "m")
    assert not recorded.superseded
    desired.stop_awaiting(lambda name: name == "m")
    assert recorded.superseded
    assert not desired.awaited


def test_a_record_that_names_no_files_is_loaded_as_found() -> None:
    desired = DesiredModels()
    record = replace(WITH_FILES, by_name=True, files={})
    model = desired.add("m", Reason.RECORDED, found(), record=record)
    assert not model.searching
    assert desired.requested == {"m"}
    taken_over = desired.add("m", Reason.TAKEN_OVER)
    assert taken_over.searching
    desired.on_record(taken_over, found(), None)
    assert not taken_over.searching
    assert taken_over.record is None


# ---- what the catalogue shows


def test_models_that_move_and_records_that_are_awaited() -> None:
    desired = DesiredModels()
    assert desired.begin_moves(["a", "b"]) == {"a", "b"}
    assert desired.begin_moves(["b", "c"]) == {"c"}
    desired.end_moves(["a", "z"])
    assert desired.moving == {"b", "c"}
    desired.await_records(awaited=True)
    assert desired.restoring
