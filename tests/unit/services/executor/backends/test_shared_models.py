"""What instances of one model share."""

from __future__ import annotations

import os
from pathlib import Path

from nereid.services.executor.backends.shared_models import SharedByFile


class Thing:
    pass


def test_a_file_is_shared_on_each_device_until_it_changes(tmp_path: Path) -> None:
    things: SharedByFile[Thing] = SharedByFile()
    path = tmp_path / "model"
    path.touch()
    first = things.get(path, "cpu", Thing)
    assert things.get(path, "cpu", Thing) is first
    assert things.get(path, "cuda:0", Thing) is not first
    os.utime(path, ns=(1, 1))
    assert things.get(path, "cpu", Thing) is not first


def test_nothing_is_kept_that_nobody_has(tmp_path: Path) -> None:
    things: SharedByFile[Thing] = SharedByFile()
    made = 0

    def make() -> Thing:
        nonlocal made
        made += 1
        return Thing()

    for _ in range(2):
        things.get(tmp_path, "cpu", make)
    assert made == 2
