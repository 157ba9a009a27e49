"""Packed environments are unpacked once for each content."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_executor.backends.python.supervisor import environments


@pytest.fixture(autouse=True)
def _discard() -> Iterator[None]:
    yield
    environments.discard()


def pack(archive: Path, text: str) -> None:
    """An environment whose Python has this text."""
    python = archive.with_suffix("") / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(text)
    with tarfile.open(archive, "w") as file:
        file.add(python.parent.parent, ".")


def unpacked(archive: Path) -> Path:
    return Path(environments.python_of("m", archive))


def test_an_archive_with_the_size_and_date_of_the_last_one_is_another(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar"
    pack(archive, "old")
    old, before = unpacked(archive), archive.stat()
    assert unpacked(archive) == old
    pack(archive, "new")
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert archive.stat().st_size == before.st_size
    assert unpacked(archive).read_text() == "new"
    # Workers may still run the other.
    assert old.read_text() == "old"


def test_copies_of_an_archive_are_unpacked_once(tmp_path: Path) -> None:
    archive, copy = tmp_path / "env.tar", tmp_path / "copy.tar"
    pack(archive, "python")
    copy.write_bytes(archive.read_bytes())
    assert unpacked(copy) == unpacked(archive)
