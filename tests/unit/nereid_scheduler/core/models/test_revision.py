"""Changes of files and configurations that change a revision."""

import os
from pathlib import Path

import pytest

from nereid.model_config import parse_config
from nereid_scheduler.core.models.revision import digest_files, revision_of

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


def test_the_digest_is_the_same_while_nothing_changes(version: Path) -> None:
    before = digest_files(str(version))
    assert len(before) == 16
    (version.parent / "2" / "model.py").write_text("another version")
    assert digest_files(str(version)) == before


@pytest.mark.parametrize(
    "name", ["model.py", "weights/a", "../labels.txt", "weights/new", "b\udcff"]
)
def test_a_file_written_changes_it(version: Path, name: str) -> None:
    before = digest_files(str(version))
    (version / name).write_text("something else")
    assert digest_files(str(version)) != before


def test_a_file_gone_or_renamed_changes_it(version: Path) -> None:
    seen = {digest_files(str(version))}
    (version / "weights" / "a").rename(version / "weights" / "b")
    seen.add(digest_files(str(version)))
    (version / "weights" / "b").unlink()
    seen.add(digest_files(str(version)))
    assert len(seen) == 3


def test_a_copy_with_the_size_and_time_of_the_old_file_changes_it(version: Path) -> None:
    before = digest_files(str(version))
    path = version / "weights" / "a"
    status = path.stat()
    path.write_text("4321")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest_files(str(version)) != before


def test_files_behind_a_symbolic_link_count(version: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b").write_text("1")
    (version / "linked").symlink_to(elsewhere)
    (version / "round").symlink_to(version)
    before = digest_files(str(version))
    (elsewhere / "b").write_text("12")
    assert digest_files(str(version)) != before


def test_python_bytecode_does_not_count(version: Path) -> None:
    before = digest_files(str(version))
    for directory in (version, version.parent):
        (directory / "__pycache__").mkdir()
        (directory / "__pycache__" / "model.cpython-311.pyc").write_text("compiled")
    assert digest_files(str(version)) == before


def test_configuration_files_do_not_count(version: Path) -> None:
    before = digest_files(str(version))
    (version.parent / "config.pbtxt").write_text("max_batch_size: 4")
    (version.parent / "configs").mkdir()
    (version.parent / "configs" / "other.pbtxt").write_text("max_batch_size: 8")
    assert digest_files(str(version)) == before
    (version / "config.pbtxt").write_text("this one is the model's own")
    assert digest_files(str(version)) != before


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ("", True),
        ("max_batch_size: 8", False),
        ("instance_group { count: 3 }", True),
        ("version_policy { all { } }", True),
    ],
)
def test_the_configurations_fields_count(more: str, same: bool) -> None:
    other = parse_config('name: "m" backend: "python" max_batch_size: 4', model_name="m")
    other.MergeFrom(parse_config(more, model_name="m"))
    assert (revision_of(CONFIG, b"files") == revision_of(other, b"files")) is same
    assert revision_of(CONFIG, b"files") != revision_of(CONFIG, b"other files")
