"""What the records of models say, and what makes no sense."""

import asyncio

import pytest

from nereid.core.errors import Internal
from nereid_scheduler.control.state.format.records import DamagedRecord, file_digest, record_name
from nereid_scheduler.control.state.model_records import ModelRecords, parse_model_record
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.store import StateError
from nereid_scheduler.core.models.model_record import ModelRecord, model_key
from nereid_scheduler.core.models.overrides import Override
from tests.support.scheduler.state_store import MemoryStateStore

FILES = {"1/model.onnx": b"a", "2/model.onnx": b"a", "3/model.onnx": b""}


@pytest.mark.parametrize(
    "record",
    [
        ModelRecord("m", loaded=True),
        ModelRecord("m", loaded=False),
        ModelRecord("a::b/../c", loaded=True, by_name=False, config="{}"),
        ModelRecord("m", loaded=True, config="", files={"1/x": "00"}, lost="x", directory="/d"),
    ],
    ids=["loaded", "unloaded", "step", "files"],
)
def test_a_record_is_read_as_it_was_written(record: ModelRecord) -> None:
    assert parse_model_record(record.key, record.document()) == record


def test_what_is_about_something_else_is_no_record_of_a_model() -> None:
    assert parse_model_record("settings/log", {"loaded": True}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"loaded": None},
        {"loaded": 1},
        {"by_name": "yes"},
        {"config": 7},
        {"files": []},
        {"files": {"1/x": 7}},
        {"lost": None},
        {"directory": None},
    ],
    ids=str,
)
def test_a_value_of_another_type_is_damage(change: dict[str, object]) -> None:
    document = ModelRecord("m", loaded=True).document() | change
    with pytest.raises(DamagedRecord):
        parse_model_record(model_key("m"), document)


async def opened(store: MemoryStateStore) -> tuple[StateRecorder, ModelRecords]:
    recorder = StateRecorder(store)
    records = ModelRecords(recorder)
    records.parse(await recorder.read())
    return recorder, records


async def read(store: MemoryStateStore) -> tuple[ModelRecords, dict[str, ModelRecord]]:
    """As a scheduler that starts now."""
    recorder = StateRecorder(store)
    records = ModelRecords(recorder)
    return records, records.parse(await recorder.read())


async def test_loads_and_unloads_are_read_by_the_next_scheduler() -> None:
    store = MemoryStateStore()
    _, records = await opened(store)
    await records.record_load("plain", None, by_name=True)
    await records.record_load("step", None, by_name=False)
    await records.record_load("configured", Override("{}"), by_name=True)
    await records.record_load("brought", Override("{}", FILES), by_name=True)
    await records.record_load("forgotten", None, by_name=True)
    await records.record_unload("forgotten", kept=False)
    await records.record_unload("unloaded", kept=True)
    following, found = await read(store)
    assert {name: (each.loaded, each.by_name) for name, each in found.items()} == {
        "plain": (True, True),
        "step": (True, False),
        "configured": (True, True),
        "brought": (True, True),
        "unloaded": (False, True),
    }
    assert await following.read_override(found["plain"]) is None
    assert await following.read_override(found["configured"]) == Override("{}")
    assert await following.read_override(found["brought"]) == Override("{}", FILES)
    assert [following.last_files(name) for name in ("brought", "plain", "none")] == [
        True,
        False,
        False,
    ]


async def test_a_load_of_what_is_in_service_changes_no_override() -> None:
    store = MemoryStateStore()
    _, records = await opened(store)
    await records.record_load("configured", Override("{}"), by_name=True)
    await records.record_request("configured")
    await records.record_load("step", None, by_name=False)
    await records.record_request("step")
    await records.record_request("initial")
    _, found = await read(store)
    assert found["configured"].config == "{}"
    assert found["step"].by_name
    assert found["initial"].loaded


async def test_files_that_are_too_large_are_missed_with_a_reason() -> None:
    store = MemoryStateStore()
    store.max_files_bytes = 1
    _, records = await opened(store)
    await records.record_load("m", Override("{}", FILES), by_name=True)
    await records.record_load("large", Override("{}", FILES | {"4/x": b"b"}), by_name=True)
    following, found = await read(store)
    with pytest.raises(Internal, match="more than the 1 that are kept"):
        await following.read_override(found["large"])
    assert following.last_files("large")


async def test_files_that_cannot_be_written_are_missed_with_a_reason() -> None:
    store = MemoryStateStore()
    recorder, records = await opened(store)
    store.error = StateError("full")
    await records.record_load("m", Override("{}", FILES), by_name=True)
    assert recorder.failures == 1
    await recorder.close()


async def test_files_that_cannot_be_read_are_waited_for_and_damaged_ones_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    _, records = await opened(store)
    await records.record_load("m", Override("{}", FILES), by_name=True)
    recorder = StateRecorder(store)
    following = ModelRecords(recorder, retry_s=0.0)
    found = following.parse(await recorder.read())
    store.files_error = StateError("no connection")
    reading = asyncio.create_task(following.read_override(found["m"]))
    while recorder.failures < 3:
        await asyncio.sleep(0)
    assert caplog.text.count("'m' waits for the files that it was loaded with: no connection") == 1
    assert not reading.done()
    store.files_error = None
    assert await reading == Override("{}", FILES)
    store.files[record_name(model_key("m"))][file_digest(b"a")] = b"b"
    with pytest.raises(Internal, match="damaged or missing"):
        await following.read_override(found["m"])


async def test_a_record_that_makes_no_sense_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    documents: dict[str, dict[str, object]] = {
        model_key("good"): {"loaded": True},
        model_key("bad"): {"loaded": 7},
    }
    store = MemoryStateStore(**documents)
    _, found = await read(store)
    assert set(found) == {"good"}
    assert "model/bad in the state is ignored" in caplog.text


async def test_what_another_scheduler_deleted_is_not_known_any_more() -> None:
    store = MemoryStateStore()
    recorder, records = await opened(store)
    await records.record_load("m", Override("{}", FILES), by_name=True)
    assert records.last_files("m")
    _, others = await opened(store)
    await others.record_unload("m", kept=False)
    store.open.clear()
    reading = asyncio.create_task(recorder.read())
    pending = asyncio.create_task(records.record_load("n", Override("{}", FILES), by_name=True))
    await asyncio.sleep(0)
    store.open.set()
    records.parse(await reading)
    await pending
    assert (records.last_files("m"), records.last_files("n")) == (False, True)


async def test_what_has_changed_since_is_not_read() -> None:
    store = MemoryStateStore(**{model_key("m"): {"loaded": True}})
    recorder = StateRecorder(store)
    records = ModelRecords(recorder)
    recorder.put(model_key("m"), {"loaded": False})
    assert records.parse(await recorder.read()) == {}
