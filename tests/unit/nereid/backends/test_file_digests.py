"""A file is told from another by its content."""

from __future__ import annotations

import os
from pathlib import Path

from nereid.backends.file_digests import digest_of, identity_of


def replace(path: Path, content: bytes) -> None:
    """With another content of the same date."""
    date = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(date, date))


def test_a_file_with_the_size_and_date_of_the_last_one_is_another(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    old = digest_of(path)
    replace(path, b"new")
    assert digest_of(path) != old
    replace(path, b"old")
    assert digest_of(path) == old


def test_a_directory_is_all_files_in_it_and_their_names(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    (directory / "deep").mkdir(parents=True)
    file = directory / "deep/file"
    file.write_bytes(b"old")
    old = digest_of(directory)
    replace(file, b"new")
    assert digest_of(directory) != old
    replace(file, b"old")
    assert digest_of(directory) == old
    file.rename(directory / "file")
    assert digest_of(directory) != old


def test_a_file_that_is_not_read_is_known_by_its_state() -> None:
    path = Path(os.__file__)
    assert identity_of(path, 0) == identity_of(path, 0) != identity_of(path)
    assert identity_of(path) == digest_of(path)


def test_a_young_file_that_is_not_read_is_no_other_one(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    assert identity_of(path) == identity_of(path)
    assert identity_of(path, 0) != identity_of(path, 0)
