"""The table of regions that gateways of one host share; each stands for a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.core.errors import NereidError
from nereid_gateway.core.tensors.region_ranges import RegionRange
from nereid_gateway.plane.client_shm.region_files import RegionFiles
from nereid_gateway.plane.client_shm.regions import CUDA, SYSTEM, Registration
from nereid_gateway.plane.client_shm.shared_regions import SharedRegions
from nereid_gateway.plane.client_shm.system import open_system, reopen_system
from tests.support.peers.shared_memory import Objects, open_files, shared_memory_objects

RANGE = RegionRange("r", 0, 4)


@pytest.fixture
def objects() -> Iterator[Objects]:
    with shared_memory_objects() as made:
        yield made
        assert not {name for name in open_files() if "nereid_test" in name}


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[tuple[SharedRegions, SharedRegions]]:
    made = SharedRegions(RegionFiles(tmp_path / "t")), SharedRegions(RegionFiles(tmp_path / "t"))
    yield made
    for each in made:
        each.close()


def register(regions: SharedRegions, name: str, key: str, size_bytes: int = 8) -> None:
    about = Registration(SYSTEM, name, size_bytes, key)
    regions.register(about, lambda: open_system(about))


def test_what_one_registers_the_others_have(
    objects: Objects, gateways: tuple[SharedRegions, SharedRegions]
) -> None:
    one, other = gateways
    key = objects.make(b"01234567")
    register(one, "r", key)
    # Its client may give the name to another object.
    objects.path(key).unlink()
    objects.path(key).write_bytes(b"another")
    assert (
        other.status(SYSTEM, "") == one.status(SYSTEM, "r") == [Registration(SYSTEM, "r", 8, key)]
    )
    other.find_region(RANGE).write(RANGE, b"abcd")
    assert one.find_region(RegionRange("r", 2, 4)).read(RegionRange("r", 2, 4)) == b"cd45"
    with pytest.raises(NereidError, match="shared memory region 'r' already in manager"):
        register(other, "r", key)
    register(other, "s", key, 4)
    other.unregister(SYSTEM, "s")
    other.unregister(SYSTEM, "r")
    for each in gateways:
        assert each.status(SYSTEM, "") == []
        with pytest.raises(NereidError, match="Unable to find shared memory region: 'r'"):
            each.find_region(RANGE)
    register(one, "r", key, 7)
    assert other.find_region(RANGE).read(RANGE) == b"anot"


def test_a_region_in_use_anywhere_is_unregistered_later(
    objects: Objects, gateways: tuple[SharedRegions, SharedRegions]
) -> None:
    one, other = gateways
    for name in ("r", "s"):
        register(one, name, objects.make(b"01234567"))
    region, own = other.find_region(RANGE), one.find_region(RANGE)
    for each in (region, region, own):
        each.begin_use()
    one.unregister(SYSTEM, "")
    for each in (region, own):
        each.end_use()
        assert [each.name for each in other.status(SYSTEM, "")] == ["r"]
        other.find_region(RANGE).write(RANGE, b"abcd")
    with pytest.raises(NereidError, match="already in manager"):
        register(one, "r", objects.make(b"01234567"))
    region.end_use()
    assert one.status(SYSTEM, "") == other.status(SYSTEM, "") == []
    # What another gateway has removed meanwhile is left alone.
    region.begin_use()
    region.end_use()


def test_a_region_whose_table_is_locked_is_unregistered_by_the_next_request_for_it(
    objects: Objects, tmp_path: Path
) -> None:
    files = RegionFiles(tmp_path / "t")
    regions = SharedRegions(RegionFiles(tmp_path / "t", lock_timeout_s=0))
    register(regions, "r", objects.make(b"01234567"))
    region = regions.find_region(RANGE)
    region.begin_use()
    regions.unregister(SYSTEM, "r")
    with files.locked():
        region.end_use()
        assert regions.status(SYSTEM, "r")
    regions.unregister(SYSTEM, "r")
    assert regions.status(SYSTEM, "") == []
    regions.close()
    files.close()


def test_a_request_that_found_a_region_too_early_writes_nothing(
    objects: Objects, gateways: tuple[SharedRegions, SharedRegions]
) -> None:
    one, other = gateways
    register(one, "r", objects.make(b"01234567"))
    found = other.find_region(RANGE)
    one.unregister(SYSTEM, "r")
    found.begin_use()
    with pytest.raises(NereidError, match="Unable to find shared memory region: 'r'"):
        found.write(RANGE, b"late")
    found.end_use()
    assert other.status(SYSTEM, "") == []


def test_a_gateway_that_starts_again_has_the_regions(
    objects: Objects, gateways: tuple[SharedRegions, SharedRegions], tmp_path: Path
) -> None:
    one, _ = gateways
    register(one, "r", objects.make(b"01234567"))
    again = SharedRegions(RegionFiles(tmp_path / "t"))
    assert again.find_region(RANGE).read(RANGE) == b"0123"
    again.close()
    assert one.find_region(RANGE).read(RANGE) == b"0123"


def test_memory_that_cannot_be_opened_is_as_if_it_had_shrunk(
    objects: Objects, gateways: tuple[SharedRegions, SharedRegions]
) -> None:
    one, other = gateways
    about = Registration(CUDA, "r", 8, device_id=1, handle=b"h" * 64)
    memory = open_system(Registration(SYSTEM, "", 8, objects.make(b"01234567")))
    # There is no GPU here: only the first gateway can have opened it.
    one.register(about, lambda: memory)
    assert other.status(CUDA, "r") == [about]
    with pytest.raises(NereidError, match="Invalid offset"):
        other.find_region(RANGE).read(RANGE)
    other.unregister(CUDA, "")
    assert one.status(CUDA, "") == []


def test_an_object_is_opened_by_its_key_when_its_process_has_ended(objects: Objects) -> None:
    key = objects.make(b"01234567")
    about = Registration(SYSTEM, "r", 8, key)
    memory = open_system(about)
    process, descriptor, *identity = memory.source()
    assert process == os.getpid()
    memory.close()
    # What had the descriptor is gone, and another file may have it by now.
    for stale in (descriptor, os.open("/dev/null", os.O_RDWR)):
        reopened = reopen_system(about, (process, stale, *identity))
        assert reopened.read(0, 8) == b"01234567"
        reopened.close()
    os.close(stale)
    objects.path(key).unlink()
    objects.path(key).write_bytes(b"another1")
    with pytest.raises(OSError, match="another object"):
        reopen_system(about, (process, -1, *identity))
    objects.path(key).unlink()
    with pytest.raises(NereidError, match="Unable to open shared memory region"):
        reopen_system(about, (process, -1, *identity))


def test_a_region_that_cannot_be_announced_is_not_registered(
    objects: Objects, gateways: tuple[SharedRegions, SharedRegions], tmp_path: Path
) -> None:
    one, _ = gateways
    assert one.status(SYSTEM, "") == []
    (tmp_path / "t").rename(tmp_path / "gone")
    with pytest.raises(NereidError, match="cannot be changed now"):
        register(one, "r", objects.make(b"01234567"))
    (tmp_path / "gone").rename(tmp_path / "t")
    assert one.status(SYSTEM, "") == []


def test_a_process_that_stops_with_the_lock_delays_the_others_for_a_moment_only(
    tmp_path: Path,
) -> None:
    stopped = RegionFiles(tmp_path / "t")
    regions = SharedRegions(RegionFiles(tmp_path / "t", lock_timeout_s=0))
    with stopped.locked(), pytest.raises(NereidError, match="cannot be changed now"):
        regions.unregister(SYSTEM, "")
    regions.unregister(SYSTEM, "")
    regions.close()
    stopped.close()
