"""Whatever changes a model's answers changes its revision."""

import os
from pathlib import Path

import pytest

from nereid.model_config import parse_config
from services.scheduler.revision import revision_of

CONFIG = parse_config('name: "m" backend: "python" max_batch_size: 4', model_name="m")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "m" / "1"
    (path / "weights").mkdir(parents=True)
    (path / "model.py").write_text("one")
    (path / "weights" / "a").write_text("1234")
    (path.parent / "labels.txt").write_text("cat")
    (path.parent / "2").mkdir()
    return path


def test_it_stays_while_nothing_changes(version: Path) -> None:
    before = revision_of(CONFIG, str(version))
    assert len(before) == 16
    (version.parent / "2" / "model.py").write_text("another version")
    assert revision_of(CONFIG, str(version)) == before


@pytest.mark.parametrize(
    "name", ["model.py", "weights/a", "../labels.txt", "weights/new", "b\udcff"]
)
def test_a_file_written_changes_it(version: Path, name: str) -> None:
    before = revision_of(CONFIG, str(version))
    (version / name).write_text("something else")
    assert revision_of(CONFIG, str(version)) != before


def test_a_file_gone_or_renamed_changes_it(version: Path) -> None:
    seen = {revision_of(CONFIG, str(version))}
    (version / "weights" / "a").rename(version / "weights" / "b")
    seen.add(revision_of(CONFIG, str(version)))
    (version / "weights" / "b").unlink()
    seen.add(revision_of(CONFIG, str(version)))
    assert len(seen) == 3


def test_a_copy_with_the_size_and_time_of_the_old_file_changes_it(version: Path) -> None:
    before = revision_of(CONFIG, str(version))
    path = version / "weights" / "a"
    status = path.stat()
    path.write_text("4321")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert revision_of(CONFIG, str(version)) != before


def test_what_lies_behind_a_link_counts(version: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b").write_text("1")
    (version / "linked").symlink_to(elsewhere)
    (version / "round").symlink_to(version)
    before = revision_of(CONFIG, str(version))
    (elsewhere / "b").write_text("12")
    assert revision_of(CONFIG, str(version)) != before


def test_the_configuration_counts(version: Path) -> None:
    other = parse_config('name: "m" backend: "python" max_batch_size: 8', model_name="m")
    assert revision_of(CONFIG, str(version)) != revision_of(other, str(version))
