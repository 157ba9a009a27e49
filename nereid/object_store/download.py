"""Downloads of single objects: several ranges at a time, resumable, verified."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from nereid.object_store.errors import DamagedObjectError, FetchCancelledError, StoreError
from nereid.rpc.net.backoff import Backoff, BackoffOptions

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from nereid.object_store.file_systems import Chunk
    from nereid.object_store.plans.listing import StoredObject

_HASH_BYTES: Final = 1 << 20
_BACKOFF: Final = BackoffOptions(first_s=0.2, factor=2)


@dataclass(frozen=True, slots=True)
class DownloadRules:
    """Rules for reading objects. ranges and attempts are maximum numbers."""

    threads: int = 8
    range_bytes: int = 8 << 20
    ranges: int = 4
    attempts: int = 5
    backoff: BackoffOptions = _BACKOFF


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An object to download. read(start, end) does not include the byte at `end`."""

    url: str
    stored: StoredObject
    read: Callable[[int, int], Chunk]

    @property
    def object_name(self) -> str:
        """Name of the object in a cache. If the object's content changes, so does the name."""
        text = f"{self.url}\0{self.stored.tag}\0{self.stored.size}"
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class Downloader:
    """Downloader with its own threads. It may be used from any thread."""

    def __init__(self, rules: DownloadRules | None = None) -> None:
        self._rules = rules or DownloadRules()
        self._pool = ThreadPoolExecutor(self._rules.threads, "store-read")

    def close(self) -> None:
        """Cancel the reads that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def download(self, source: SourceFile, file: BinaryIO, cancelled: threading.Event) -> None:
        """Write an object to a file that may already hold the object's beginning.

        Raises StoreError (the file keeps what was written), DamagedObjectError for a wrong MD5 (the
        file is then empty), or OSError for the file.
        """
        url, stored = source.url, source.stored
        digest = hashlib.md5(usedforsecurity=False)
        begun = file.seek(0, os.SEEK_END)
        if begun > stored.size:
            begun = file.truncate(0)
        file.seek(0)
        while begun and (piece := file.read(_HASH_BYTES)):
            digest.update(piece)
        is_md5 = True
        for chunk in self._chunks(source, begun, cancelled):
            file.write(chunk.content)
            digest.update(chunk.content)
            is_md5 = is_md5 and chunk.is_md5
        if stored.md5 and is_md5 and digest.hexdigest() != stored.md5:
            file.truncate(0)
            raise DamagedObjectError(
                f"{url} is damaged: its MD5 is {digest.hexdigest()}, expected {stored.md5}"
            )
        file.flush()
        # Sync now: the file is about to get the name of a complete object, and must survive a
        # crash.
        os.fsync(file.fileno())

    def _chunks(
        self, source: SourceFile, begun: int, cancelled: threading.Event
    ) -> Iterator[Chunk]:
        rules, size = self._rules, source.stored.size
        starts = iter(range(begun, size, rules.range_bytes))
        pending: deque[Future[Chunk]] = deque()

        def submit_next() -> None:
            start = next(starts, None)
            if start is not None:
                end = min(start + rules.range_bytes, size)
                pending.append(self._pool.submit(self._read, source, start, end, cancelled))

        try:
            for _ in range(rules.ranges):
                submit_next()
            while pending:
                yield pending.popleft().result()
                submit_next()
        finally:
            for future in pending:
                future.cancel()

    def _read(self, source: SourceFile, start: int, end: int, cancelled: threading.Event) -> Chunk:
        backoff = Backoff(self._rules.backoff)
        for attempts_left in range(self._rules.attempts - 1, -1, -1):
            if cancelled.is_set():
                break
            try:
                chunk = source.read(start, end)
                if len(chunk.content) == end - start:
                    return chunk
                raise StoreError(
                    f"{source.url}: received {len(chunk.content)} bytes of {end - start} at {start}"
                )
            except StoreError as error:
                # For a subclass of StoreError, another attempt would fail as well.
                if type(error) is not StoreError or not attempts_left:
                    raise
            cancelled.wait(backoff.next_delay_s())
        raise FetchCancelledError(f"{source.url} is not needed any more")
