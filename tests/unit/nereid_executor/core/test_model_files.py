"""When a model's files count as those that it was loaded from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nereid.backends.file_digests import MAX_IDENTIFIED_BYTES
from nereid_executor.core.model_files import ModelFiles, read_model_files


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "m" / "1"
    (path / "weights").mkdir(parents=True)
    (path / "model.onnx").write_bytes(b"a")
    (path / "weights" / "w").write_bytes(b"b")
    (tmp_path / "m" / "labels.txt").write_text("cat")
    (tmp_path / "m" / "config.pbtxt").write_text("")
    (tmp_path / "m" / "initial_state").mkdir()
    (tmp_path / "m" / "initial_state" / "s").write_bytes(b"c")
    (tmp_path / "m" / "2").mkdir()
    (tmp_path / "m" / "2" / "model.onnx").write_bytes(b"d")
    return path


def files(version: Path) -> ModelFiles:
    found = read_model_files(version)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name", ["1/model.onnx", "1/weights/w", "labels.txt", "initial_state/s", "1/new"]
)
def test_files_that_the_model_may_have_read(version: Path, name: str) -> None:
    before = files(version)
    assert before.same_in(files(version))
    (version.parent / name).write_bytes(b"changed")
    assert not before.same_in(files(version))


@pytest.mark.parametrize(
    "name", ["2/model.onnx", "config.pbtxt", "1/__pycache__/model.pyc", "log", "cache/new"]
)
def test_files_that_do_not_matter(version: Path, name: str) -> None:
    before = files(version)
    path = version.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"changed")
    assert before.same_in(files(version))


def test_a_file_that_was_replaced_by_one_of_its_size_and_age(version: Path) -> None:
    before = files(version)
    path, status = version / "model.onnx", (version / "model.onnx").stat()
    (version.parent / "new").write_bytes(b"z")
    os.utime(version.parent / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    (version.parent / "new").replace(path)
    assert not before.same_in(files(version))


def test_a_file_that_was_written_over_and_given_its_old_date(version: Path) -> None:
    before = files(version)
    path, status = version / "model.onnx", (version / "model.onnx").stat()
    path.write_bytes(b"z")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not before.same_in(files(version))


def test_a_file_that_was_written_anew_with_what_it_had(version: Path) -> None:
    before = files(version)
    (version / "new").write_bytes(b"a")
    (version / "new").replace(version / "model.onnx")
    os.utime(version / "model.onnx", ns=(1, 1))
    assert before.same_in(files(version))


def test_a_pipe_that_nobody_writes_to(version: Path) -> None:
    os.mkfifo(version / "pipe")
    before = files(version)
    assert before.same_in(files(version))
    (version / "pipe").unlink()
    assert not before.same_in(files(version))


def test_a_file_that_is_too_large_to_be_read(version: Path) -> None:
    with (version / "large").open("wb") as file:
        file.truncate(MAX_IDENTIFIED_BYTES + 1)
    # So young a file may have changed within its date.
    assert not files(version).same_in(files(version))


def test_what_a_link_points_to(version: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"1")
    (version / "link").symlink_to(tmp_path / "target")
    before = files(version)
    (tmp_path / "target").write_bytes(b"22")
    assert not before.same_in(files(version))
    (tmp_path / "target").unlink()
    assert not before.same_in(read_model_files(version))


def test_what_is_not_there(tmp_path: Path) -> None:
    assert read_model_files(tmp_path / "m" / "1") is None


def test_what_is_beside_an_export_is_of_other_models(version: Path) -> None:
    export = version.parent.parent / "export"
    (export / "onnx").mkdir(parents=True)
    (export / "onnx" / "model.onnx").write_bytes(b"a")
    before = files(export)
    assert not before.shared_files
    (version / "model.onnx").write_bytes(b"changed")
    assert files(export) == before
    (export / "onnx" / "model.onnx").write_bytes(b"changed")
    assert files(export) != before
