"""The recorder over a store that fails, hangs and is written by others as the test says."""

import asyncio
import logging

import pytest

from nereid_scheduler.control.state.format import records as formats
from nereid_scheduler.control.state.format.records import (
    record_name,
)
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.store import StateError, StateStore
from tests.support.scheduler.state_store import MemoryStateStore
from tests.support.waiting import until

LIMIT_S = 10.0


async def opened(store: StateStore, **times: float) -> StateRecorder:
    """One that has read its store."""
    recorder = StateRecorder(store, **times)  # type: ignore[arg-type]
    await recorder.read()
    return recorder


async def written(recorder: StateRecorder, key: str) -> None:
    await asyncio.wait_for(recorder.written(key), LIMIT_S)


async def until_idle(recorder: StateRecorder, *keys: str) -> None:
    await until(lambda: not any(map(recorder.is_pending, keys)))


async def test_changes_are_written_read_and_deleted() -> None:
    store = MemoryStateStore(old={"n": 1})
    recorder = StateRecorder(store)
    assert await recorder.read() == {"old": {"n": 1}}
    recorder.put("old", {"n": 2})
    recorder.put("new", {"n": 3}, {"f": b"x"})
    await written(recorder, "new")
    assert (store.document("old"), store.document("new")) == ({"n": 2}, {"n": 3})
    assert await recorder.read_files("new", ["f"]) == {"f": b"x"}
    recorder.delete("old")
    recorder.delete("unknown")
    await written(recorder, "old")
    await written(recorder, "unknown")
    assert store.document("old") is None
    assert store.writes == ["old", "new", "deletion"]
    assert recorder.failures == 0
    await recorder.close()
    assert store.closed


async def test_of_several_changes_only_the_last_is_written() -> None:
    store = MemoryStateStore()
    recorder = await opened(store)
    store.open.clear()
    recorder.put("m", {"n": 1})
    first = asyncio.create_task(recorder.written("m"))
    await until(lambda: store.writes)
    for number in range(2, 9):
        recorder.put("m", {"n": number})
    # Its change will not be written any more, or is being written: it waits for nothing.
    await asyncio.wait_for(first, LIMIT_S)
    store.open.set()
    await written(recorder, "m")
    assert store.document("m") == {"n": 8}
    assert store.writes == ["m", "m"]


async def test_a_store_that_hangs_delays_one_caller_and_no_other() -> None:
    store = MemoryStateStore()
    recorder = await opened(store, wait_s=0.01)
    store.open.clear()
    recorder.put("a", {"n": 1})
    await written(recorder, "a")
    assert recorder.failures == 1
    for number in range(100):
        recorder.put(f"b{number}", {"n": 1})
        # Without a wait: no turn of the loop passes.
        with pytest.raises(StopIteration):
            recorder.written(f"b{number}").send(None)
    store.open.set()
    await until_idle(recorder, *(f"b{number}" for number in range(100)))
    assert store.document("b99") == {"n": 1}
    store.open.clear()
    recorder.put("a", {"n": 2})
    await recorder.close()
    assert store.document("a") == {"n": 1}


async def test_a_failed_write_is_tried_again_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore(m={"n": 0})
    recorder = await opened(store, retry_s=0.001)
    store.error = StateError("the disk is full")
    with caplog.at_level(logging.INFO):
        recorder.put("m", {"n": 1}, {"f": b"x"}, {"lost": True})
        await written(recorder, "m")
        await until(lambda: recorder.failures >= 3)
        store.error = None
        await until_idle(recorder, "m")
    # The files did not wait in memory for the disk.
    assert store.document("m") == {"lost": True}
    assert store.files[record_name("m")] == {}
    texts = [each.getMessage() for each in caplog.records]
    assert len([each for each in texts if "the disk is full" in each]) == 1
    assert texts[-1] == "the state is recorded again"


async def test_a_new_change_does_not_wait_for_those_that_failed() -> None:
    store = MemoryStateStore()
    recorder = await opened(store, wait_s=LIMIT_S, retry_s=3600.0)
    store.error = StateError("the disk is full")
    recorder.put("failed", {"n": 1})
    await written(recorder, "failed")
    store.error = None
    recorder.put("new", {"n": 1})
    await written(recorder, "new")
    assert store.document("new") == {"n": 1}
    assert recorder.is_pending("failed")
    assert recorder.failures == 1


async def test_the_end_tries_failed_changes_once_more() -> None:
    store = MemoryStateStore()
    recorder = await opened(store, retry_s=3600.0)
    store.error = StateError("the disk is full")
    for key in ("a", "b"):
        recorder.put(key, {"n": 1})
        await written(recorder, key)
    store.error = None
    await asyncio.wait_for(recorder.close(), LIMIT_S)
    assert (store.document("a"), store.document("b")) == ({"n": 1}, {"n": 1})


async def test_the_end_does_not_wait_for_a_store_that_still_fails() -> None:
    store = MemoryStateStore()
    recorder = await opened(store, wait_s=3600.0, retry_s=3600.0)
    store.error = StateError("the disk is full")
    recorder.put("m", {"n": 1})
    await written(recorder, "m")
    await asyncio.wait_for(recorder.close(), LIMIT_S)
    assert recorder.failures == 2


async def test_a_record_that_cannot_be_replaced_is_deleted_meanwhile() -> None:
    """A full disk allows that; what it said would be wrong."""

    class FullStore(MemoryStateStore):
        async def write(self, *_: object) -> None:
            raise StateError("the disk is full")

    store = FullStore(m={"n": 0}, settings={"n": 0})
    recorder = await opened(store)
    recorder.put("m", {"n": 1})
    recorder.put("settings", {"n": 1}, over_others=True)
    await written(recorder, "m")
    await written(recorder, "settings")
    assert store.document("m") is None
    assert store.document("settings") == {"n": 0}


async def test_a_bug_of_a_store_is_a_failure_as_well() -> None:
    store = MemoryStateStore()
    recorder = await opened(store, retry_s=0.001)
    store.error = ZeroDivisionError()
    recorder.put("m", {"n": 1})
    await written(recorder, "m")
    assert recorder.failures == 1
    store.error = None
    await until_idle(recorder, "m")
    assert store.document("m") == {"n": 1}


async def test_a_record_that_is_too_large_fails() -> None:
    store = MemoryStateStore()
    recorder = await opened(store, max_record_bytes=1000)
    recorder.put("m", {"text": "x" * 1000})
    await written(recorder, "m")
    assert recorder.failures == 1
    assert store.records == {}


async def test_who_no_longer_owns_a_model_does_not_write_over_its_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore(m={"n": 0})
    recorder, owner = await opened(store), await opened(store)
    owner.put("m", {"n": 1})
    await written(owner, "m")
    recorder.put("m", {"n": 2})
    await written(recorder, "m")
    assert store.document("m") == {"n": 1}
    assert (recorder.failures, recorder.is_pending("m")) == (1, False)
    assert "m is not recorded" in caplog.text
    # It has seen what the other wrote: its next change counts.
    recorder.put("m", {"n": 3})
    await written(recorder, "m")
    assert store.document("m") == {"n": 3}


async def test_who_takes_a_model_over_replaces_what_its_last_owner_wrote_before_reading_it() -> (
    None
):
    store = MemoryStateStore()
    recorder, lost = await opened(store), await opened(store)
    for key in ("loaded", "unloaded"):
        lost.put(key, {"n": 1})
        await written(lost, key)
        recorder.mark_unread(key)
    recorder.put("loaded", {"n": 2})
    recorder.delete("unloaded")
    for key in ("loaded", "unloaded"):
        await written(recorder, key)
    assert (store.document("loaded"), store.document("unloaded")) == ({"n": 2}, None)
    assert recorder.failures == 0


async def test_of_settings_that_two_schedulers_change_the_last_counts() -> None:
    store = MemoryStateStore()
    recorder, other = await opened(store), await opened(store)
    for each, number in ((recorder, 1), (other, 2), (recorder, 3)):
        each.put("settings", {"n": number}, over_others=True)
        await written(each, "settings")
        assert store.document("settings") == {"n": number}
    assert recorder.failures == other.failures == 0


async def test_damaged_records_are_set_aside_and_the_others_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore(good={"n": 1}, bad={"n": 2})
    name = record_name("bad")
    store.records[name] = store.records[name][:-1]
    recorder = StateRecorder(store)
    assert await recorder.read() == {"good": {"n": 1}}
    assert list(store.aside) == [name]
    assert recorder.failures == 1
    assert len([each for each in caplog.records if "it is kept at aside" in each.message]) == 1
    recorder.put("bad", {"n": 3})
    await written(recorder, "bad")
    assert store.document("bad") == {"n": 3}


async def test_nothing_is_written_over_what_a_newer_scheduler_wrote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore(good={"n": 1})
    body = b"what is to come"
    name = record_name("newer")
    store.records[name] = formats._head(2, body, b"") + body
    before = dict(store.records)
    recorder = StateRecorder(store)
    recorder.put("early", {"n": 2})
    assert await recorder.read() == {}
    assert not recorder.is_pending("early")
    recorder.put("good", {"n": 2})
    recorder.delete("good")
    await written(recorder, "good")
    assert (store.records, store.writes) == (before, [])
    assert len(caplog.records) == 1
    await recorder.close()


async def test_until_the_store_was_read_nothing_is_written() -> None:
    store = MemoryStateStore(a={"n": 1}, b={"n": 1})
    store.error = StateError("no connection")
    recorder = StateRecorder(store, wait_s=0.01)
    with pytest.raises(StateError):
        await recorder.read()
    recorder.put("a", {"n": 2})
    recorder.delete("b")
    await written(recorder, "a")
    assert store.writes == []
    store.error = None
    assert set(await recorder.read()) == {"a", "b"}
    assert recorder.is_pending("a")
    await until_idle(recorder, "a", "b")
    assert (store.document("a"), store.document("b")) == ({"n": 2}, None)


async def test_who_gets_a_model_back_reads_what_its_owner_wrote() -> None:
    store = MemoryStateStore(kept={"n": 0}, deleted={"n": 0})
    recorder, owner = await opened(store), await opened(store)
    owner.put("kept", {"n": 1})
    owner.put("new", {"n": 1})
    owner.delete("deleted")
    for key in ("kept", "new", "deleted"):
        await written(owner, key)
    assert await recorder.read() == {"kept": {"n": 1}, "new": {"n": 1}}
    for key in ("kept", "new", "deleted"):
        recorder.put(key, {"n": 2})
        await written(recorder, key)
        assert store.document(key) == {"n": 2}
    assert recorder.failures == 0


async def test_a_write_beside_a_read_is_not_forgotten() -> None:
    class SlowlyRead(MemoryStateStore):
        async def read_all(self) -> dict[str, bytes]:
            stored = await super().read_all()
            # What is read is old by the time that it comes.
            await asyncio.wait_for(may_end.wait(), LIMIT_S)
            return stored

    may_end = asyncio.Event()
    may_end.set()
    store = SlowlyRead(changed={"n": 0}, unchanged={"n": 0})
    recorder = await opened(store)
    may_end.clear()
    reading = asyncio.create_task(recorder.read())
    await asyncio.sleep(0)
    for key in ("changed", "new"):
        recorder.put(key, {"n": 1})
        await written(recorder, key)
    may_end.set()
    await reading
    for key in ("changed", "new", "unchanged"):
        recorder.put(key, {"n": 2})
        await written(recorder, key)
        assert store.document(key) == {"n": 2}
    assert recorder.failures == 0
    await recorder.close()


async def test_a_damaged_record_that_cannot_be_set_aside_is_replaced_by_the_next() -> None:
    class Stuck(MemoryStateStore):
        async def set_aside(self, name: str) -> str:
            raise StateError("read-only")

    store = Stuck(bad={"n": 2})
    store.records[record_name("bad")] = store.records[record_name("bad")][:-1]
    recorder = StateRecorder(store)
    assert await recorder.read() == {}
    recorder.put("bad", {"n": 3})
    await written(recorder, "bad")
    assert store.document("bad") == {"n": 3}
