"""What is read of a path in a repository, and what is not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nereid.core.files.regular_files import read_regular_file


def test_files_and_links_to_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular_file(tmp_path / "file", 5) == b"12345"
    assert read_regular_file(tmp_path / "link") == b"12345"


def test_a_file_without_a_size_is_read_to_its_end_or_to_the_limit() -> None:
    status = Path("/proc/self/limits")
    assert status.stat().st_size == 0
    assert read_regular_file(status) == status.read_bytes()
    with pytest.raises(OSError, match="more than 5 bytes"):
        read_regular_file(status, 5)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (_socket, "No such device or address"),
        (lambda path: path.write_bytes(b"123456"), "more than 5 bytes"),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
    ],
    ids=("pipe", "device", "folder", "socket", "large", "dangling"),
)
def test_others_are_refused_at_once(
    make: Callable[[Path], None], text: str, tmp_path: Path
) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError, match=text):
        read_regular_file(tmp_path / "x", 5)
