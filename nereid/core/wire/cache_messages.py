"""Messages between the scheduler and the cache, and their codecs for sockets.

Keys and values are opaque bytes. A link in memory passes the objects themselves.
"""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from nereid.pb import nereid_pb2 as pb


class CacheLookup(NamedTuple):
    """Request to look up a key; the id is unique on its link."""

    id: int
    key: bytes
    trace_context: bytes = b""


class CacheStore(NamedTuple):
    """Request to store a value; time_to_live_ms of 0 is the cache's default."""

    key: bytes
    value: bytes
    time_to_live_ms: int = 0
    trace_context: bytes = b""


class LookupResult(NamedTuple):
    """Result of the lookup with the same id. A value of None is a miss, or a failed lookup."""

    id: int
    value: bytes | None


@dataclass(slots=True)
class CacheUsage:
    """Counters of a cache since its start; capacity_bytes is 0 if unknown or unlimited."""

    entries: int = 0
    used_bytes: int = 0
    capacity_bytes: int = 0
    lookups: int = 0
    hits: int = 0
    evictions: int = 0
    stores: int = 0
    failures: int = 0
    lookup_ns: int = 0
    store_ns: int = 0

    def to_proto(self) -> pb.CacheUsage:
        """Return the protobuf message with the same content."""
        return pb.CacheUsage(**{name: getattr(self, name) for name in _USAGE_FIELDS})

    def counts_less_than(self, other: CacheUsage) -> bool:
        """Return whether a counter fell since the previous report, so the cache restarted."""
        return any(getattr(self, name) < getattr(other, name) for name in _COUNTERS)

    def add_counts(self, other: CacheUsage) -> None:
        """Add another report's counters, for example from before a restart."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


CacheRequest = CacheLookup | CacheStore
CacheReply = LookupResult | CacheUsage

_USAGE_FIELDS: Final = tuple(field.name for field in fields(CacheUsage))
_COUNTERS: Final = tuple(
    name for name in _USAGE_FIELDS if name not in ("entries", "used_bytes", "capacity_bytes")
)


class CacheRequestCodec:
    """Codec of frames from the scheduler to the cache."""

    def size_bytes(self, item: CacheRequest) -> int:
        """Return the approximate number of bytes that an item adds to a frame."""
        return len(item.key) + (len(item.value) if isinstance(item, CacheStore) else 0)

    def encode(self, items: list[CacheRequest]) -> bytes:
        """Return a frame with these items."""
        frame = pb.CacheFrame()
        for item in items:
            if isinstance(item, CacheLookup):
                frame.lookups.add(id=item.id, key=item.key, trace_context=item.trace_context)
            else:
                frame.stores.add(
                    key=item.key,
                    value=item.value,
                    time_to_live_ms=item.time_to_live_ms,
                    trace_context=item.trace_context,
                )
        return frame.SerializeToString()

    def decode(self, frame: bytes) -> list[CacheRequest]:
        """Return the items of a frame: lookups first, then stores."""
        parsed = pb.CacheFrame.FromString(frame)
        items: list[CacheRequest] = [
            CacheLookup(lookup.id, lookup.key, lookup.trace_context) for lookup in parsed.lookups
        ]
        items += [
            CacheStore(store.key, store.value, store.time_to_live_ms, store.trace_context)
            for store in parsed.stores
        ]
        return items


class CacheReplyCodec:
    """Codec of frames from the cache to the scheduler."""

    def size_bytes(self, item: CacheReply) -> int:
        """Return the approximate number of bytes that an item adds to a frame."""
        return len(item.value or b"") if isinstance(item, LookupResult) else 0

    def encode(self, items: list[CacheReply]) -> bytes:
        """Return a frame with these items; of several usage reports, only the last is included."""
        frame = pb.LookupResultFrame()
        for item in items:
            if isinstance(item, LookupResult):
                frame.results.add(id=item.id, value=item.value)
            else:
                frame.usage.CopyFrom(item.to_proto())
        return frame.SerializeToString()

    def decode(self, frame: bytes) -> list[CacheReply]:
        """Return the items of a frame: results first, then the usage."""
        parsed = pb.LookupResultFrame.FromString(frame)
        items: list[CacheReply] = [
            LookupResult(result.id, result.value if result.HasField("value") else None)
            for result in parsed.results
        ]
        if parsed.HasField("usage"):
            usage = parsed.usage
            items.append(CacheUsage(**{name: getattr(usage, name) for name in _USAGE_FIELDS}))
        return items
