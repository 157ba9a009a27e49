"""Models that clients had loaded, found again as their records say."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nereid.core.errors import Internal, InvalidArgument
from nereid_scheduler.control.repository.recorded_models import RecordedModels
from nereid_scheduler.control.state.model_records import ModelRecords
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.model_record import ModelRecord
from nereid_scheduler.core.models.overrides import Override

FILES = {"1/model.onnx": "digest"}
OVERRIDE = Override("{}", {"1/model.onnx": b"content"})


class Repositories:
    """Tells what it was asked for as the digest of what it finds."""

    def require(
        self,
        name: str,
        override: Override | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> FoundModel:
        return FoundModel(name, digest=repr(override).encode())

    def outline(self, name: str, config: str) -> FoundModel:
        if config == "bad":
            raise InvalidArgument("bad")
        return FoundModel(name, digest=f"outline {config}".encode())


class Records:
    async def read_override(self, record: ModelRecord) -> Override | None:
        if record.lost:
            raise record.loss()
        return OVERRIDE if record.files else None


def recorded(*, files_allowed: bool = True) -> RecordedModels:
    records = cast("ModelRecords", Records())
    return RecordedModels(cast("Any", Repositories()), records, files_allowed=files_allowed)


async def test_outlines_need_no_files() -> None:
    records = {
        "plain": ModelRecord("plain", loaded=True),
        "config": ModelRecord("config", loaded=True, config="{}"),
        "files": ModelRecord("files", loaded=True, config="{}", files=FILES),
        "bad": ModelRecord("bad", loaded=True, config="bad", files=FILES),
        "lost": ModelRecord("lost", loaded=True, files=FILES, lost="too large"),
    }
    found = await recorded().find_outlines(iter(records.values()))
    assert {name: each.digest for name, each in found.items() if each.error is None} == {
        "plain": b"None",
        "config": repr(Override("{}")).encode(),
        "files": b"outline {}",
    }
    errors = {name: each.error.message for name, each in found.items() if each.error is not None}
    assert errors == {
        "bad": "bad",
        "lost": "it was loaded with files that were not kept: too large",
    }


@pytest.mark.parametrize(
    ("record", "files_allowed", "error"),
    [
        (ModelRecord("m", loaded=True, files=FILES), True, None),
        (ModelRecord("m", loaded=True, files=FILES), False, InvalidArgument),
        (ModelRecord("m", loaded=True, lost="too large"), True, Internal),
        (ModelRecord("m", loaded=True), False, None),
    ],
)
async def test_files_are_read_if_they_are_allowed(
    record: ModelRecord, files_allowed: bool, error: type[Exception] | None
) -> None:
    found = await recorded(files_allowed=files_allowed).find(record)
    if error is None:
        assert found.error is None
        assert found.digest == repr(OVERRIDE if record.files else None).encode()
    else:
        assert isinstance(found.error, error)
