"""Models that instances share."""

from __future__ import annotations

import os
from pathlib import Path

from nereid.backends.shared_models import SharedModels


class LoadedModel:
    pass


def test_a_file_is_shared_on_each_device_until_it_changes(tmp_path: Path) -> None:
    models: SharedModels[LoadedModel] = SharedModels()
    path = tmp_path / "model"
    path.write_bytes(b"old")
    first = models.get_or_load(path, "cpu", LoadedModel)
    assert models.get_or_load(path, "cpu", LoadedModel) is first
    assert models.get_or_load(path, "cuda:0", LoadedModel) is not first
    # A copy may keep the size and the date.
    date = path.stat().st_mtime_ns
    path.write_bytes(b"new")
    os.utime(path, ns=(date, date))
    assert models.get_or_load(path, "cpu", LoadedModel) is not first


def test_a_model_that_no_instance_uses_is_loaded_again(tmp_path: Path) -> None:
    models: SharedModels[LoadedModel] = SharedModels()
    loaded = 0

    def load() -> LoadedModel:
        nonlocal loaded
        loaded += 1
        return LoadedModel()

    for _ in range(2):
        models.get_or_load(tmp_path, "cpu", load)
    assert loaded == 2
