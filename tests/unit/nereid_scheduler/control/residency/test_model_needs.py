"""What models need on each executor, before and after they were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.model_config import parse_config
from nereid_scheduler.control.residency.model_needs import ModelNeeds
from tests.support.scheduler.world import MIB, found, joined

if TYPE_CHECKING:
    from pathlib import Path


WRITTEN = 'backend: "onnxruntime" instance_group { count: 1 kind: KIND_CPU }'


async def test_a_size_is_guessed_from_the_files_until_it_is_measured(tmp_path: Path) -> None:
    (tmp_path / "1" / "weights").mkdir(parents=True)
    (tmp_path / "1" / "weights" / "w").write_bytes(b"x" * (20 * MIB))
    draft = parse_config(WRITTEN, model_name="m")
    model = replace(found("m"), path=tmp_path, draft=draft)
    able, other = (joined(name, backends=[name])[0] for name in ("onnxruntime", "python"))
    needs = ModelNeeds()
    file_bytes = await needs.file_bytes(model)
    assert file_bytes == 20 * MIB
    assert needs.needs(model, [able, other], file_bytes) == {"onnxruntime": {"cpu": 30 * MIB}}
    # The load itself says what is wrong.
    assert needs.needs(model, [other], file_bytes) == {"python": {}}
    assert needs.measured("m", {"onnxruntime": {"cpu": [5, 7]}})
    assert not needs.measured("m", {"onnxruntime": {"cpu": [5, 7]}})
    assert await needs.file_bytes(model) == 0
    assert needs.needs(model, [able], 0) == {"onnxruntime": {"cpu": 6}}
    restored = ModelNeeds()
    restored.restore(needs.saved())
    assert restored.needs(model, [able], 0) == {"onnxruntime": {"cpu": 6}}
