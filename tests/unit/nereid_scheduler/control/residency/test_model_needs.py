"""What models need on each executor, before and after they were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.model_config import parse_config
from nereid_scheduler.control.residency.model_needs import model_needs, read_file_bytes
from nereid_scheduler.core.memory.sizes import ModelSizes
from tests.support.scheduler.world import MIB, found, joined

if TYPE_CHECKING:
    from pathlib import Path


WRITTEN = 'backend: "onnxruntime" instance_group { count: 1 kind: KIND_CPU }'


def test_a_size_is_guessed_from_the_files_until_it_is_measured(tmp_path: Path) -> None:
    (tmp_path / "1" / "weights").mkdir(parents=True)
    (tmp_path / "1" / "weights" / "w").write_bytes(b"x" * (20 * MIB))
    model = replace(found("m"), path=tmp_path, draft=parse_config(WRITTEN, model_name="m"))
    able, other = (joined(name, backends=[name])[0] for name in ("onnxruntime", "python"))
    file_bytes = read_file_bytes(model)
    assert file_bytes == 20 * MIB
    sizes = ModelSizes()
    guessed = model_needs(model, sizes, [able, other], file_bytes)
    assert guessed == {"onnxruntime": {"cpu": 30 * MIB}}
    # The load itself says what is wrong.
    assert model_needs(model, sizes, [other], file_bytes) == {"python": {}}
    assert sizes.measured("m", {"cpu": [5, 7]})
    assert model_needs(model, sizes, [able], 0) == {"onnxruntime": {"cpu": 6}}
