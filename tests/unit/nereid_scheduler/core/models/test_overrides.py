"""Configurations and files in a load request."""

import gc
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.files.temporary_directories import OVERRIDE, TemporaryDirectory
from nereid.pb import kserve_pb2
from nereid_scheduler.core.models.overrides import (
    Override,
    parse_override,
    read_override,
    write_files,
)

Parameter = kserve_pb2.ModelRepositoryParameter


@pytest.mark.parametrize(
    ("parameters", "override"),
    [
        ({}, None),
        ({"config": Parameter(string_param="{}")}, Override("{}")),
        ({"file:1/a": Parameter(bytes_param=b"x")}, Override("", {"1/a": b"x"})),
        (
            {"file:1/a": Parameter(bytes_param=b"x"), "config": Parameter(string_param="{}")},
            Override("{}", {"1/a": b"x"}),
        ),
    ],
)
def test_parameters_are_read(
    parameters: dict[str, kserve_pb2.ModelRepositoryParameter], override: Override | None
) -> None:
    assert read_override(parameters) == override


@pytest.mark.parametrize(
    ("name", "parameter", "text"),
    [
        ("foo", Parameter(string_param="x"), "unrecognized load parameter 'foo'."),
        (
            "config",
            Parameter(int64_param=1),
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "file:1/a",
            Parameter(string_param="x"),
            "invalid value type for load parameter 'file:1/a', expected bytes_param.",
        ),
    ],
)
def test_invalid_parameters_are_refused(
    name: str, parameter: kserve_pb2.ModelRepositoryParameter, text: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_override({name: parameter})
    assert refused.value.message == text


def test_a_configuration_is_read_from_json() -> None:
    draft = parse_override('{"max_batch_size": 3, "instance_group": [{"kind": "KIND_CPU"}]}')
    assert (draft.max_batch_size, len(draft.instance_group)) == (3, 1)


def test_a_configuration_is_read_as_leniently_as_by_triton() -> None:
    # A bare key such as NVIDIA's own tests of iterative sequences send.
    direct = "direct: {'max_queue_delay_microseconds': 7}"
    draft = parse_override(f'{{"sequence_batching": {{"iterative_sequence": "true", {direct}}},}}')
    sequences = draft.sequence_batching
    assert sequences.iterative_sequence
    assert sequences.direct.max_queue_delay_microseconds == 7


@pytest.mark.parametrize("text", ["", "x", "[]", '{"nosuch": 1}', '{"max_batch_size": "x"}'])
def test_an_invalid_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Invalid config override|must be specified"):
        parse_override(text)


def wait_for_removals() -> None:
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "removal":
            thread.join()


def test_files_are_in_a_directory_of_this_user_until_it_is_released() -> None:
    directory = write_files({"1/model.onnx": b"one", "labels.txt": b"cat"})
    path = directory.path
    assert (path / "1" / "model.onnx").read_bytes() == b"one"
    assert (path / "labels.txt").read_bytes() == b"cat"
    assert path.stat().st_mode & 0o077 == 0
    del directory
    wait_for_removals()
    assert not path.exists()


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (dict.fromkeys(map(str, range(1025)), b""), "at most 1024 files, not 1025"),
        ({"a/" * 17 + "x": b""}, "it has more than 16 folders"),
    ],
)
def test_files_that_cost_much_are_refused(files: dict[str, bytes], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        write_files(files)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "1/../../x", "a\0b"])
def test_a_path_out_of_the_model_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="must stay within"):
        write_files({name: b"x"})


FILES = {"1/model.onnx": b"one", "labels.txt": b"cat"}


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a scheduler that was killed has left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = Path(tempfile.mkdtemp(prefix=OVERRIDE))
    (directory / "1" / "__pycache__").mkdir(parents=True)
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    return directory


def test_files_that_a_killed_scheduler_left_are_not_written_again(left: Path) -> None:
    before = (left / "1" / "model.onnx").stat()
    directory = write_files(FILES, str(left))
    after = (directory.path / "1" / "model.onnx").stat()
    assert directory.path == left
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    del directory
    wait_for_removals()
    assert not left.exists()


def test_files_remain_as_long_as_an_executor_uses_them(left: Path) -> None:
    directory, used = write_files(FILES, str(left)), TemporaryDirectory(left)
    del directory
    wait_for_removals()
    assert (left / "labels.txt").read_bytes() == b"cat"
    used.release()
    assert not left.exists()


def change_content(left: Path) -> None:
    (left / "labels.txt").write_bytes(b"dog")


def remove_a_file(left: Path) -> None:
    (left / "labels.txt").unlink()


def link_a_file(left: Path) -> None:
    (left / "labels.txt").rename(left / "other")
    (left / "labels.txt").symlink_to("other")


def open_to_others(left: Path) -> None:
    left.chmod(0o755)


def remove_it(left: Path) -> None:
    left.rename(left.with_name("elsewhere"))


def replace_it_by_a_link(left: Path) -> None:
    left.rename(left.with_name("elsewhere"))
    left.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        change_content,
        remove_a_file,
        link_a_file,
        open_to_others,
        remove_it,
        replace_it_by_a_link,
    ],
)
def test_other_files_are_written_anew(left: Path, change: Callable[[Path], None]) -> None:
    change(left)
    directory = write_files(FILES, str(left))
    assert directory.path != left
    assert (directory.path / "labels.txt").read_bytes() == b"cat"


def test_only_directories_of_schedulers_are_taken_for_theirs(left: Path) -> None:
    for path in (left.rename(left.with_name("other")), left.with_name(f"{OVERRIDE}abcdefgh") / "y"):
        assert write_files(FILES, str(path)).path != path
    assert left.with_name("other").exists()
