"""System regions: objects of /dev/shm."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.core.errors import NereidError
from nereid_gateway.plane.client_shm.regions import SYSTEM, Registration
from nereid_gateway.plane.client_shm.system import SystemMemory, open_system
from tests.support.peers.shared_memory import Objects, open_files, shared_memory_objects

PAGE = mmap.PAGESIZE


@pytest.fixture
def objects() -> Iterator[Objects]:
    with shared_memory_objects() as made:
        yield made


def opened(key: str, offset: int = 0, size_bytes: int = 64) -> SystemMemory:
    return open_system(Registration(SYSTEM, "r", size_bytes, key, offset))


def refused(key: str, offset: int = 0, size_bytes: int = 64) -> int:
    with pytest.raises(NereidError) as caught:
        opened(key, offset, size_bytes)
    return caught.value.code


def test_a_region_begins_at_its_offset(objects: Objects) -> None:
    key = objects.make(bytes(PAGE) + b"abcdefgh" + bytes(PAGE))
    memory = opened(key, PAGE)
    assert memory.read(2, 3) == b"cde"
    assert memory.write(1, memoryview(b"XY"))
    assert objects.read(key)[PAGE : PAGE + 4] == b"aXYd"
    memory.close()
    memory.close()
    assert str(objects.path(key)) not in open_files()


def test_leading_slashes_are_ignored(objects: Objects) -> None:
    key = objects.make(b"abcd" * 16)
    for same in (key, key[1:], "//" + key):
        memory = opened(same)
        assert memory.read(0, 4) == b"abcd"
        memory.close()


@pytest.mark.parametrize(
    "key",
    [
        "/nereid_test_there_is_none",
        ".",
        "..",
        "/..",
        "../etc/passwd",
        "/../etc/passwd",
        "/a/../../etc/passwd",
        "{}/",
        "./{}",
        "{}\0",
        "\ud800",
        "a" * 256,
        "é" * 200,
    ],
)
def test_a_key_is_a_name_not_a_path(objects: Objects, key: str) -> None:
    name = objects.make(bytes(64))[1:]
    asked = key.replace("{}", name)
    assert refused(asked) == 13


def test_a_key_does_not_lead_to_a_file_elsewhere(tmp_path: Path) -> None:
    outside = tmp_path / "file"
    outside.write_bytes(bytes(64))
    for before in ("/", "../..", "/../..", "x/../../.."):
        assert refused(f"{before}{outside}") == 13


def test_only_regular_files_are_opened(objects: Objects) -> None:
    fifo, link, folder = (objects.path(objects.make(b"")) for _ in range(3))
    for path in (fifo, link, folder):
        path.unlink()
    os.mkfifo(fifo)
    link.symlink_to("/etc/passwd")
    folder.mkdir()
    try:
        assert refused(fifo.name) == 3
        for path in (link, folder):
            assert refused(path.name) == 13
    finally:
        folder.rmdir()
    assert str(fifo) not in open_files()


@pytest.mark.parametrize(
    ("offset", "size_bytes"),
    [
        (0, 2 * PAGE + 1),
        (PAGE, PAGE + 1),
        (2 * PAGE, 1),
        (2**64 - PAGE, 2 * PAGE),
        (0, 2**64 - 1),
        (1, 64),
        (0, 0),
    ],
)
def test_a_range_outside_the_object_is_refused(
    objects: Objects, offset: int, size_bytes: int
) -> None:
    key = objects.make(bytes(2 * PAGE))
    assert refused(key, offset, size_bytes) == 3
    assert str(objects.path(key)) not in open_files()


def test_an_object_that_shrinks_does_no_harm(objects: Objects) -> None:
    key = objects.make(b"x" * (2 * PAGE))
    memory = opened(key, 0, 2 * PAGE)
    os.truncate(objects.path(key), PAGE + 1)
    assert memory.read(PAGE, PAGE) == b"x"
    assert not memory.write(PAGE, bytes(PAGE))
    os.truncate(objects.path(key), 0)
    assert memory.read(0, PAGE) == b""
    assert objects.read(key) == b""
    memory.close()


def test_an_unlinked_object_is_still_readable(objects: Objects) -> None:
    key = objects.make(b"x" * 64)
    memory = opened(key)
    objects.path(key).unlink()
    assert memory.read(0, 64) == b"x" * 64
    memory.close()
