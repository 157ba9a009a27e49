"""Temporary directories: as long as somebody uses them, and not longer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nereid.core.files.temporary_directories import (
    OVERRIDE,
    PYTHON_ENV,
    SERVE,
    TemporaryDirectory,
    is_temporary,
    remove_abandoned,
)

# Makes one, says where, and is killed.
_KILLED = """
import os, signal
from nereid.core.files.temporary_directories import SERVE, TemporaryDirectory
directory = TemporaryDirectory.make(SERVE)
(directory.path / "file").write_text("x")
print(directory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandoned(prefix: str = SERVE) -> Path:
    path = Path(tempfile.mkdtemp(prefix=prefix))
    (path / "file").write_text("x")
    return path


def test_it_is_there_until_the_last_user_releases_it() -> None:
    first = TemporaryDirectory.make(OVERRIDE)
    assert first.path.stat().st_mode & 0o777 == 0o700
    second = TemporaryDirectory(first.path)
    first.release()
    remove_abandoned()
    assert second.path.is_dir()
    with second:
        pass
    assert not second.path.exists()


def test_it_is_removed_whatever_a_model_left_in_it(temporary: Path) -> None:
    """A tree that is deeper than Python calls go, without rights, and with links to others."""
    outside = temporary / "outside"
    outside.mkdir()
    (outside / "file").touch()
    directory = TemporaryDirectory.make(OVERRIDE)
    level = os.open(directory.path, os.O_DIRECTORY)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=level)
        below = os.open("d", os.O_DIRECTORY, dir_fd=level)
        os.symlink(outside, "link", dir_fd=below)
        os.close(level)
        level = below
    os.close(level)
    (directory.path / "closed").mkdir(mode=0)
    directory.path.chmod(0)
    directory.release()
    assert [*temporary.iterdir()] == [outside]
    assert (outside / "file").exists()


def test_a_descriptor_keeps_it() -> None:
    directory = TemporaryDirectory.make(SERVE)
    shared = directory.share()
    os.close(directory._lock)
    remove_abandoned()
    assert directory.path.is_dir()
    os.close(shared)
    remove_abandoned()
    assert not directory.path.exists()


def test_what_a_killed_process_left_is_removed(temporary: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", _KILLED]
    killed = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    left = Path(killed.stdout.strip())
    assert (left / "file").exists()
    others = [abandoned(OVERRIDE), abandoned(PYTHON_ENV)]
    remove_abandoned()
    assert not any(each.exists() for each in [left, *others])


def open_to_others(path: Path) -> Path:
    path.chmod(0o755)
    return path


def name_it_otherwise(path: Path) -> Path:
    return path.rename(path.with_name("nereid.models"))


def replace_it_by_a_link(path: Path) -> Path:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    return path / "file"


@pytest.mark.parametrize("change", [open_to_others, name_it_otherwise, replace_it_by_a_link])
def test_what_others_have_made_is_left_alone(change: Callable[[Path], Path]) -> None:
    kept = change(abandoned())
    remove_abandoned()
    assert kept.exists()


def test_one_that_is_gone_cannot_be_used() -> None:
    directory = TemporaryDirectory.make(SERVE)
    directory.release()
    with pytest.raises(FileNotFoundError):
        TemporaryDirectory(directory.path)


def test_names(temporary: Path) -> None:
    assert is_temporary(temporary / f"{SERVE}abcd_123", SERVE)
    assert not is_temporary(temporary / f"{SERVE}abcd_123", OVERRIDE)
    assert not is_temporary(temporary / f"{SERVE}abcd", SERVE)
    assert not is_temporary(temporary / "x" / f"{SERVE}abcd_123", SERVE)
