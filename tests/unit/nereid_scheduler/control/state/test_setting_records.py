"""Settings as they are recorded and applied."""

from collections.abc import Mapping

import pytest

from nereid.core.errors import InvalidArgument
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.setting_records import LOG, TRACE, SettingRecords
from tests.support.scheduler.state_store import MemoryStateStore


async def test_settings_are_recorded_and_applied() -> None:
    store = MemoryStateStore()
    recorder = StateRecorder(store)
    await recorder.read()
    await SettingRecords(recorder).record(LOG, {"log_info": False})
    recorder = StateRecorder(store)
    documents = await recorder.read()
    applied: list[Mapping[str, object]] = []
    records = SettingRecords(recorder)
    records.apply(documents, LOG, applied.append)
    records.apply(documents, TRACE, applied.append)
    assert applied == [{"log_info": False}]
    # A client has changed them before they could be read.
    recorder.put(LOG, {"log_info": True})
    records.apply(documents, LOG, applied.append)
    assert len(applied) == 1


@pytest.mark.parametrize("error", [InvalidArgument("no tracing"), KeyError("server")], ids=repr)
async def test_what_cannot_be_applied_is_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise error

    records = SettingRecords(StateRecorder(MemoryStateStore()))
    records.apply({TRACE: {}}, TRACE, refuse)
    assert "settings/trace as clients had changed them are not restored" in caplog.text


async def test_without_a_recorder_nothing_is_recorded() -> None:
    records = SettingRecords(None)
    await records.record(LOG, {})
    records.apply({LOG: {}}, LOG, lambda _: pytest.fail("applied"))
