"""Environments of a host: built once, removed when nobody uses them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nereid.object_store.errors import FetchCancelledError
from nereid_executor.backends.python.packages.environment_cache import (
    EnvironmentCache,
    EnvironmentLease,
)
from nereid_executor.backends.python.packages.eviction import KeptLimits


class Builds:
    """Counts builds; each waits until it is released, and fails if it is said to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.released = threading.Event()
        self.released.set()
        self.fails = False

    def build(self, target: Path, scratch: Path, lock: int) -> None:
        self.names.append(target.name)
        (scratch / "x").write_text("x")
        target.mkdir()
        (target / "file").write_text("four")
        assert self.released.wait(10)
        if self.fails:
            raise ValueError("no")


@pytest.fixture
def builds() -> Builds:
    return Builds()


def open_cache(folder: Path, most: int = 10) -> EnvironmentCache:
    return EnvironmentCache(folder, KeptLimits(most, 0))


def lease(cache: EnvironmentCache, builds: Builds, name: str = "a") -> EnvironmentLease:
    return cache.lease(name, builds.build, threading.Event(), lambda: None)


def test_executors_of_a_host_build_once(tmp_path: Path, builds: Builds) -> None:
    builds.released.clear()
    waits = threading.Event()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(lease, open_cache(tmp_path), builds)

        def second() -> EnvironmentLease:
            def on_wait() -> None:
                waits.set()

            return open_cache(tmp_path).lease("a", builds.build, threading.Event(), on_wait)

        while not builds.names:
            pass
        other = pool.submit(second)
        assert waits.wait(10)
        builds.released.set()
        assert first.result().path == other.result().path
    assert builds.names == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {"environments", "locks"}


def test_a_wait_can_be_cancelled(tmp_path: Path, builds: Builds) -> None:
    builds.released.clear()
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(lease, open_cache(tmp_path), builds)
        while not builds.names:
            pass
        other = open_cache(tmp_path)
        with pytest.raises(FetchCancelledError):
            other.lease("a", builds.build, cancelled, cancelled.set)
        builds.released.set()
        first.result().release()


def test_failed_and_killed_builds_leave_nothing(tmp_path: Path, builds: Builds) -> None:
    cache = open_cache(tmp_path)
    builds.fails = True
    with pytest.raises(ValueError, match="no"):
        lease(cache, builds)
    assert list((tmp_path / "environments").iterdir()) == []
    builds.fails = False
    # As a killed process has left it.
    (tmp_path / "environments" / "a").mkdir()
    (tmp_path / "environments" / "a" / "half").touch()
    (tmp_path / "environments" / "b").mkdir()
    (tmp_path / "a.scratch-x").mkdir()
    path = lease(cache, builds).path
    assert not (path / "half").exists()
    assert [each.name for each in (tmp_path / "environments").iterdir()] == ["a"]
    assert not (tmp_path / "a.scratch-x").exists()


def test_the_least_recently_used_goes_and_none_in_use(tmp_path: Path, builds: Builds) -> None:
    cache = open_cache(tmp_path, most=2)
    used = lease(cache, builds, "used")
    for name in ("a", "b", "a", "c"):
        lease(cache, builds, name).release()
    assert builds.names == ["used", "a", "b", "a", "c"]
    kept = {path.name for path in (tmp_path / "environments").iterdir()}
    assert kept == {"used", "c"}
    assert {path.name for path in (tmp_path / "locks").iterdir()} == kept
    used.release()
    used.release()


def test_a_directory_of_others_is_refused(tmp_path: Path, builds: Builds) -> None:
    tmp_path.chmod(0o777)
    lease(open_cache(tmp_path), builds).release()
    (tmp_path / "environments").chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by, other users"):
        lease(open_cache(tmp_path), builds)
