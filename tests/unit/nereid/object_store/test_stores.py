"""Versions fetched to a host's cache from a store in this process, which fails on demand."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from nereid.object_store.cache import HostCache, TreeLease
from nereid.object_store.download import Downloader, DownloadRules
from nereid.object_store.errors import (
    AccessRefusedError,
    CacheFullError,
    DamagedObjectError,
    FetchCancelledError,
    MissingObjectError,
    ObjectChangedError,
    StoreError,
)
from nereid.object_store.file_locks import try_lock
from nereid.object_store.stores import CachePlace, ModelStores
from nereid.rpc import BackoffOptions
from tests.support.object_stores.memory_store import MemoryFiles

REPOSITORY = "s3://b/models"
RULES = DownloadRules(range_bytes=10, backoff=BackoffOptions(first_s=0.001))
WEIGHTS = bytes(range(95))


def model(name: str = "m", weights: bytes = WEIGHTS) -> dict[str, bytes]:
    return {
        f"b/models/{name}/config.pbtxt": b"",
        f"b/models/{name}/labels.txt": b"cat\ndog",
        f"b/models/{name}/1/model.onnx": weights,
        f"b/models/{name}/2/model.onnx": b"other",
    }


class Host:
    """A host with a cache, and its store."""

    def __init__(self, tmp_path: Path, limit_bytes: int = 0) -> None:
        self.files = MemoryFiles(model())
        self.directory = tmp_path / "cache"
        self.cancelled = threading.Event()
        place = CachePlace(self.directory, tmp_path / "default", limit_bytes)
        self.downloader = Downloader(RULES)
        self.stores = ModelStores({}, place, self.files.open_store, self.downloader)

    def digest(self, name: str = "m", version: str = "1") -> bytes:
        return self.files.open_store(REPOSITORY).list_model(name).digest(version)

    def fetch(self, name: str = "m", digest: bytes | None = None) -> TreeLease:
        known = self.digest(name) if digest is None else digest
        return self.stores.fetch(f"{REPOSITORY}/{name}/1", known, self.cancelled)

    def objects(self) -> list[int]:
        """The sizes of complete ones."""
        return sorted(path.stat().st_size for path in (self.directory / "objects").iterdir())

    def partial(self) -> list[int]:
        return sorted(path.stat().st_size for path in (self.directory / "partial").iterdir())

    def trees(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "trees").iterdir())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_version_with_what_is_beside_it(host: Host) -> None:
    lease = host.fetch()
    found = {
        str(path.relative_to(lease.path)): path.read_bytes()
        for path in lease.path.rglob("*")
        if path.is_file()
    }
    assert found == {"config.pbtxt": b"", "labels.txt": b"cat\ndog", "1/model.onnx": WEIGHTS}
    assert lease.path.name == "m"
    assert host.directory.joinpath("objects").stat().st_mode & 0o777 == 0o700
    # Each byte was read once, several ranges at a time.
    ranges = [each[1:] for each in host.files.reads if each[0].endswith("onnx")]
    assert sorted(ranges) == [(at, min(at + 10, 95)) for at in range(0, 95, 10)]


def test_what_was_fetched_is_not_asked_for_again(host: Host) -> None:
    digest = host.digest()
    host.fetch().release()
    lists, reads = host.files.lists, len(host.files.reads)

    def refuse() -> None:
        raise OSError("the store is away")

    host.files.before_list = refuse
    host.fetch(digest=digest)
    assert (host.files.lists, len(host.files.reads)) == (lists, reads)


def test_only_changed_objects_are_read_again(host: Host) -> None:
    first = host.fetch()
    host.files.objects["b/models/m/labels.txt"] = b"cat\ncow"
    reads = len(host.files.reads)
    second = host.fetch()
    assert {each[0] for each in host.files.reads[reads:]} == {"b/models/m/labels.txt"}
    # The old version still has its own.
    assert first.path.joinpath("labels.txt").read_bytes() == b"cat\ndog"
    assert second.path.joinpath("labels.txt").read_bytes() == b"cat\ncow"
    weights = [each.path.joinpath("1/model.onnx").stat().st_ino for each in (first, second)]
    assert weights[0] == weights[1]


def test_an_interrupted_download_goes_on_where_it_was(host: Host) -> None:
    def interrupt(path: str, start: int, _end: int) -> None:
        if path.endswith("onnx") and start >= 50:
            raise ConnectionResetError("the connection was reset")

    host.files.before_read = interrupt
    with pytest.raises(StoreError, match="ConnectionResetError"):
        host.fetch()
    assert host.trees() == []
    assert max(host.partial()) == 50
    host.files.before_read = lambda *_: None
    host.files.reads.clear()
    assert host.fetch().path.joinpath("1/model.onnx").read_bytes() == WEIGHTS
    assert min(each[1] for each in host.files.reads if each[0].endswith("onnx")) == 50
    assert host.partial() == []


def test_a_range_is_tried_again(host: Host) -> None:
    failures = iter(range(4))

    def fail_at_first(_path: str, start: int, _end: int) -> None:
        if start == 20 and next(failures, None) is not None:
            raise TimeoutError

    host.files.before_read = fail_at_first
    assert host.fetch().path.joinpath("1/model.onnx").read_bytes() == WEIGHTS


def test_too_few_bytes_are_an_error(host: Host) -> None:
    host.files.sent["b/models/m/1/model.onnx"] = WEIGHTS[:33]
    with pytest.raises(StoreError, match="received 3 bytes of 10 at 30"):
        host.fetch()


def test_an_object_that_changes_during_its_download(host: Host) -> None:
    def change(path: str, start: int, _end: int) -> None:
        if path.endswith("onnx") and start >= 50:
            host.files.objects[path] = bytes(95)

    host.files.before_read = change
    digest = host.digest()
    with pytest.raises(ObjectChangedError, match=r"1/model.onnx has changed since it was listed"):
        host.fetch(digest=digest)
    assert host.trees() == []
    host.files.before_read = lambda *_: None
    with pytest.raises(ObjectChangedError, match="the files of s3://b/models/m/1 have changed"):
        host.fetch(digest=digest)
    # The new one begins anew: the partial file is of another object.
    assert host.fetch().path.joinpath("1/model.onnx").read_bytes() == bytes(95)


def test_a_version_that_was_deleted(host: Host) -> None:
    digest = host.digest()
    host.files.objects.clear()
    with pytest.raises(MissingObjectError, match="does not exist any more"):
        host.fetch(digest=digest)


def test_a_damaged_object(host: Host) -> None:
    damaged = bytes(95)
    host.files.sent["b/models/m/1/model.onnx"] = damaged
    with pytest.raises(DamagedObjectError, match=r"onnx is damaged: its MD5 is \w+, expected \w+"):
        host.fetch()
    # It was read twice, in case it was damaged on its way; nothing of it remains.
    assert [each[1] for each in host.files.reads].count(40) == 2
    assert host.trees() == []
    assert len(damaged) not in host.partial()


def test_a_partial_file_that_is_damaged(host: Host) -> None:
    def interrupt(path: str, start: int, _end: int) -> None:
        if path.endswith("onnx") and start >= 50:
            raise ConnectionResetError

    host.files.before_read = interrupt
    with pytest.raises(StoreError):
        host.fetch()
    (begun,) = (host.directory / "partial").iterdir()
    begun.write_bytes(bytes(50))
    host.files.before_read = lambda *_: None
    assert host.fetch().path.joinpath("1/model.onnx").read_bytes() == WEIGHTS


def test_missing_permission(host: Host) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Access Denied")

    host.files.before_read = refuse
    with pytest.raises(AccessRefusedError, match=r"access was refused: Access Denied"):
        host.fetch()
    # Once more with fresh credentials, but no more often than that.
    assert [each[1] for each in host.files.reads].count(0) <= 2 * 3
    assert host.trees() == []


def test_a_fetch_that_is_cancelled(host: Host) -> None:
    def cancel(_path: str, start: int, _end: int) -> None:
        if start >= 50:
            host.cancelled.set()
            raise TimeoutError

    host.files.before_read = cancel
    with pytest.raises(FetchCancelledError, match="not needed any more"):
        host.fetch()
    # Other ranges and files are read meanwhile, and were kept or not.
    assert max(host.partial()) <= 50


def test_a_file_cannot_be_a_folder(host: Host) -> None:
    host.files.objects["b/models/m/labels.txt/x"] = b""
    with pytest.raises(StoreError, match="cannot be written to the repository cache"):
        host.fetch()


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot be made: .*--repository-cache-directory"):
        Host(tmp_path).fetch()


# ---- space


def test_what_no_model_uses_makes_way_for_others(tmp_path: Path) -> None:
    # Each has 100 bytes of its own, and 7 of labels.
    host = Host(tmp_path, limit_bytes=250)
    for name in ("one", "two", "three"):
        host.files.objects |= model(name, name.encode().ljust(100))
    one, two = host.fetch("one"), host.fetch("two")
    with pytest.raises(CacheFullError, match=r"107 bytes do not fit .* has 214 bytes of 250"):
        host.fetch("three")
    one.release()
    one.release()
    three = host.fetch("three")
    assert len(host.trees()) == 2
    assert two.path.joinpath("1/model.onnx").read_bytes() == b"two".ljust(100)
    with pytest.raises(CacheFullError, match="107 bytes do not fit"):
        host.fetch("one")
    two.release()
    assert host.fetch("one").path.joinpath("1/model.onnx").read_bytes() == b"one".ljust(100)
    three.release()


def test_the_least_recently_used_is_the_one_released_first(tmp_path: Path) -> None:
    host = Host(tmp_path, limit_bytes=250)
    for name in ("one", "two", "three"):
        host.files.objects |= model(name, name.encode().ljust(100))
    one, two = host.fetch("one"), host.fetch("two")
    two.release()
    one.release()
    host.fetch("three").release()
    host.files.reads.clear()
    host.fetch("one").release()
    assert host.files.reads == []
    host.fetch("two")
    assert host.files.reads != []


def test_more_than_the_whole_cache_may_have(tmp_path: Path) -> None:
    host = Host(tmp_path, limit_bytes=50)
    with pytest.raises(CacheFullError, match=r"102 bytes do not fit .* of 50 that it may have"):
        host.fetch()
    assert host.files.reads == []


def test_a_disk_without_space(host: Host) -> None:
    digest = host.digest()
    cache = HostCache(host.directory, 0, host.downloader, lambda _: 101)
    cache.prepare()
    host.stores._caches[host.directory] = cache
    with pytest.raises(CacheFullError, match=r"102 bytes do not fit .* no limit, the disk has 101"):
        host.fetch(digest=digest)


def test_a_disk_that_becomes_full(host: Host) -> None:
    class FullDisk(Downloader):
        def download(self, source, file, cancelled):  # type: ignore[no-untyped-def]
            file.write(b"begun")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = HostCache(host.directory, 0, FullDisk(RULES))
    cache.prepare()
    host.stores._caches[host.directory] = cache
    with pytest.raises(CacheFullError, match="No space left on device"):
        host.fetch()
    assert set(host.partial()) <= {0}
    assert host.trees() == []


def test_what_killed_processes_have_left_makes_way(tmp_path: Path) -> None:
    host = Host(tmp_path, limit_bytes=150)
    host.fetch().release()
    begun = host.directory / "partial" / "begun"
    begun.write_bytes(bytes(40))
    os.utime(begun, (0, 0))
    abandoned = host.directory / "trees" / "abandoned.tmp"
    abandoned.mkdir()
    host.files.objects |= model("two", bytes(100))
    host.fetch("two")
    assert not abandoned.exists()
    assert host.partial() == []
    assert host.objects() == [0, 7, 100]


def test_without_hard_links_files_are_copied(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    assert host.fetch().path.joinpath("1/model.onnx").read_bytes() == WEIGHTS


# ---- several threads and processes


def test_one_download_for_all_who_want_it(host: Host) -> None:
    digest, leases = host.digest(), []
    start = threading.Barrier(4)

    def fetch() -> None:
        start.wait(10)
        leases.append(host.fetch(digest=digest))

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert len({each.path for each in leases}) == 1
    assert [each[1] for each in host.files.reads].count(40) == 1


def _hold_lock(path: str, held, leave) -> None:  # type: ignore[no-untyped-def]
    lock = try_lock(Path(path))
    assert lock is not None
    held.set()
    leave.wait(30)


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    path = tmp_path / "lock"
    process = context.Process(target=_hold_lock, args=(str(path), held, leave))
    process.start()
    assert held.wait(30)
    assert try_lock(path) is None
    assert try_lock(path, shared=True) is None
    process.kill()
    process.join()
    lock = try_lock(path)
    assert lock is not None
    os.close(lock)


def test_a_wait_for_another_process_can_be_cancelled(host: Host) -> None:
    lease = host.fetch()
    lease.release()
    tree = host.trees()[0]
    lock = try_lock(host.directory / "locks" / tree)
    assert lock is not None
    # As one that builds it.
    (host.directory / "trees" / tree).rename(host.directory / "trees" / "elsewhere")
    host.cancelled.set()
    with pytest.raises(FetchCancelledError):
        host.fetch()
    os.close(lock)
    (host.directory / "trees" / "elsewhere").rename(host.directory / "trees" / tree)
    assert host.fetch().path == lease.path


def test_a_tree_that_another_process_looks_at_needs_no_store(host: Host) -> None:
    digest = host.digest()
    host.fetch().release()
    host.files.objects.clear()
    lock = try_lock(host.directory / "locks" / host.trees()[0])
    assert lock is not None
    threading.Timer(0.1, os.close, (lock,)).start()
    assert host.fetch(digest=digest).path.joinpath("labels.txt").read_bytes() == b"cat\ndog"


def test_a_lock_file_that_its_owner_deletes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = try_lock(path)
    assert first is not None
    path.unlink()
    second = try_lock(path)
    assert second is not None
    assert os.fstat(first).st_ino != os.fstat(second).st_ino
    os.close(first)
    os.close(second)
