"""An object store in this process, whose operations fail as a test says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from nereid.object_store.errors import ObjectChangedError
from nereid.object_store.file_systems import Chunk, StoreFiles
from nereid.object_store.plans.listing import StoredObject
from nereid.object_store.plans.urls import StoreUrl, parse_store_url
from nereid.object_store.store import ObjectStore


class MemoryFiles(StoreFiles):
    """objects: contents by path, with the bucket. before_read and before_list may raise, or change
    objects; what they raise is what the store's library would.
    """

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        super().__init__(None)
        self.objects = objects or {}
        self.reads: list[tuple[str, int, int]] = []
        self.lists = 0
        self.before_read: Callable[[str, int, int], None] = lambda *_: None
        self.before_list: Callable[[], None] = lambda: None
        # Bytes that are sent instead of an object's content.
        self.sent: dict[str, bytes] = {}

    def find(self, path: str) -> dict[str, Mapping[str, Any]]:
        self.lists += 1
        self.before_list()
        return {
            name: {"name": name, "type": "file", "size": len(content)}
            for name, content in self.objects.items()
            if name.startswith(f"{path}/")
        }

    def folder_names(self, path: str) -> list[str]:
        self.lists += 1
        self.before_list()
        below = [
            name.removeprefix(f"{path}/") for name in self.objects if name.startswith(f"{path}/")
        ]
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def require(self, path: str) -> None:
        if not any(name.startswith(f"{path}/") for name in self.objects):
            raise FileNotFoundError(path)

    def forget_listings(self) -> None:
        pass

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        md5 = hashlib.md5(self.objects[info["name"]]).hexdigest()
        return StoredObject(info["size"], md5, md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        self.reads.append((path, start, end))
        self.before_read(path, start, end)
        if path not in self.objects:
            raise FileNotFoundError(path)
        content = self.objects[path]
        if hashlib.md5(content).hexdigest() != stored.tag:
            raise ObjectChangedError(f"s3://{path} has changed since it was listed")
        return Chunk(self.sent.get(path, content)[start:end])

    def open_store(self, url: StoreUrl | str, _environ: object = None) -> ObjectStore:
        """A store with these objects, whatever its URL."""
        parsed = parse_store_url(url) if isinstance(url, str) else url
        return ObjectStore(parsed, {}, lambda *_: self)
