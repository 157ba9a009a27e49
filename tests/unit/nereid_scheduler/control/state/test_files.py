"""Records in a directory: whenever a write ends, what is found is the old or the new, whole."""

import errno
import os
from pathlib import Path

import pytest

from nereid_scheduler.control.state.file_store import FileStore
from nereid_scheduler.control.state.files import StateFiles, directory_error
from nereid_scheduler.control.state.format.records import (
    Record,
    encode_record,
    head_of,
    record_name,
)
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.control.state.store import StateError
from tests.support.waiting import until

NAME = record_name("model/m")
OLD = encode_record(Record("model/m", {"number": 1}))
NEW = encode_record(Record("model/m", {"number": 2}))
OLD_FILES = {"aa": b"old", "both": b"in both"}
NEW_FILES = {"bb": b"new", "both": b"in both"}


class Crash(BaseException):
    """The process ends here."""


class CrashAt:
    """Ends the process at the step of this number; counts them."""

    def __init__(self, number: int = -1) -> None:
        self.number = number
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        if len(self.steps) == self.number:
            raise Crash
        self.steps.append(step)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def steps_of_a_write(path: str) -> int:
    files = StateFiles(path)
    files.write(NAME, OLD, b"", OLD_FILES)
    counter = CrashAt()
    StateFiles(path, counter).write(NAME, NEW, head_of(OLD), NEW_FILES)
    return len(counter.steps)


def test_a_write_that_ends_at_any_step_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    seen = set()
    for number in range(steps_of_a_write(str(tmp_path / "counted"))):
        path = str(tmp_path / str(number))
        StateFiles(path).write(NAME, OLD, b"", OLD_FILES)
        with pytest.raises(Crash):
            StateFiles(path, CrashAt(number)).write(NAME, NEW, head_of(OLD), NEW_FILES)
        files = StateFiles(path)
        record = files.read_all()[NAME]
        expected = {OLD: OLD_FILES, NEW: NEW_FILES}[record]
        assert files.read_files(NAME, expected) == expected
        seen.add(record)
        # The next write succeeds, and leaves nothing of the one before.
        files.write(NAME, NEW, head_of(record), NEW_FILES)
        left = {each.name for each in Path(path).rglob("*") if each.is_file()}
        assert left == {"lock", NAME, *NEW_FILES}
    assert seen == {OLD, NEW}


def test_a_deletion_that_ends_at_any_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    for number in range(3):
        path = str(tmp_path / str(number))
        StateFiles(path).write(NAME, OLD, b"", OLD_FILES)
        with pytest.raises(Crash):
            StateFiles(path, CrashAt(number)).delete(NAME, head_of(OLD))
        files = StateFiles(path)
        assert files.read_all() == ({NAME: OLD} if number == 0 else {})
        if number == 0:
            assert files.read_files(NAME, OLD_FILES) == OLD_FILES


def test_nobody_else_may_enter_or_read(path: str) -> None:
    mask = os.umask(0)
    try:
        StateFiles(path).write(NAME, OLD, b"", OLD_FILES)
    finally:
        os.umask(mask)
    for each in (Path(path), *Path(path).rglob("*")):
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


def test_a_directory_that_others_may_enter_is_refused(path: str) -> None:
    assert directory_error(path) == ""
    Path(path).mkdir(mode=0o700)
    assert directory_error(path) == ""
    Path(path).chmod(0o750)
    assert "chmod 700" in directory_error(path)
    files = StateFiles(path)
    for use in (
        files.read_all,
        lambda: files.read(NAME),
        lambda: files.read_files(NAME, []),
        lambda: files.write(NAME, OLD, b"", {}),
        lambda: files.delete(NAME, b""),
        lambda: files.set_aside(NAME),
    ):
        with pytest.raises(StateError, match="chmod 700"):
            use()


def test_what_is_no_directory_or_belongs_to_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert "is no directory" in directory_error(str(tmp_path / "file"))
    assert "cannot be used" in directory_error(str(tmp_path / "file" / "below"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "another user" in directory_error(str(tmp_path))


def test_a_damaged_record_is_kept_under_another_name(path: str) -> None:
    files = StateFiles(path)
    files.write(NAME, OLD, b"", {})
    aside = files.set_aside(NAME)
    assert Path(aside).read_bytes() == OLD
    assert files.read_all() == {}
    files.write(NAME, NEW, b"", {})
    assert files.set_aside(NAME) == aside
    assert Path(aside).read_bytes() == NEW


def test_what_is_no_file_is_not_read(path: str) -> None:
    files = StateFiles(path)
    files.write(NAME, OLD, b"", {})
    place = Path(path) / "records" / NAME
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(StateError, match="is no file"):
        files.read_all()
    place.unlink()
    place.symlink_to("/etc/passwd")
    with pytest.raises(StateError, match="cannot be read"):
        files.read(NAME)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path / "none" / "state"))
    with pytest.raises(StateError, match="cannot be written"):
        files.write(NAME, OLD, b"", {})
    with pytest.raises(StateError, match="cannot be written"):
        files.set_aside(NAME)


class FullAt:
    """The disk is full at the step of this number, and never again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0

    def __call__(self, _: str) -> None:
        self.steps += 1
        if self.steps == self.number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_disk_that_is_full_at_any_step_has_the_record_later(tmp_path: Path) -> None:
    for number in range(steps_of_a_write(str(tmp_path / "counted"))):
        path = str(tmp_path / str(number))
        StateFiles(path).write(NAME, OLD, b"", OLD_FILES)
        recorder = StateRecorder(FileStore(StateFiles(path, FullAt(number))), retry_s=0.001)
        assert await recorder.read() == {"model/m": {"number": 1}}
        recorder.put("model/m", {"number": 2}, NEW_FILES, {"lost": True})
        await until(lambda kept=recorder: not kept.is_pending("model/m"))
        assert recorder.failures == 1
        await recorder.close()
        # Never the old one: that would be another model than was loaded.
        following = StateRecorder(FileStore(StateFiles(path)))
        assert await following.read() == {"model/m": {"lost": True}}
        await following.close()
