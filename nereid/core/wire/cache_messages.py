"""Messages between the scheduler and the cache, and their codecs.

An in-memory link passes the objects themselves; the codecs are for links over sockets. Keys and
values are opaque bytes. Knows no model and no store.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from nereid.pb import nereid_pb2 as pb


class CacheLookup(NamedTuple):
    """A request for the value of key. id is unique on its link. trace_context: of the parent span;
    empty: not traced.
    """

    id: int
    key: bytes
    trace_context: bytes = b""


class CacheStore(NamedTuple):
    """A value to keep. time_to_live_ms 0: the cache's own default. trace_context: as in lookups."""

    key: bytes
    value: bytes
    time_to_live_ms: int = 0
    trace_context: bytes = b""


class LookupResult(NamedTuple):
    """The result of the lookup with the same id. None: a miss; failures are misses, too."""

    id: int
    value: bytes | None


@dataclass(slots=True)
class CacheUsage:
    """A cache's counters since its start. capacity_bytes 0: unknown, or unbounded."""

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
        """The protobuf message with the same fields."""
        return pb.CacheUsage(**{name: getattr(self, name) for name in _USAGE_FIELDS})

    def counts_less_than(self, other: CacheUsage) -> bool:
        """Whether it is of a process that started after the other's report."""
        return any(getattr(self, name) < getattr(other, name) for name in _COUNTERS)

    def add_counts(self, other: CacheUsage) -> None:
        """Add those of an earlier process."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


CacheRequest = CacheLookup | CacheStore
CacheReply = LookupResult | CacheUsage

_USAGE_FIELDS: Final = tuple(field.name for field in fields(CacheUsage))
_COUNTERS: Final = tuple(
    name for name in _USAGE_FIELDS if name not in ("entries", "used_bytes", "capacity_bytes")
)


class CacheRequestCodec:
    """Frames from the scheduler to the cache."""

    def size_bytes(self, item: CacheRequest) -> int:
        return len(item.key) + (len(item.value) if isinstance(item, CacheStore) else 0)

    def encode(self, items: list[CacheRequest]) -> bytes:
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
        parsed = pb.CacheFrame.FromString(frame)
        items: list[CacheRequest] = [
            CacheLookup(each.id, each.key, each.trace_context) for each in parsed.lookups
        ]
        items += [
            CacheStore(each.key, each.value, each.time_to_live_ms, each.trace_context)
            for each in parsed.stores
        ]
        return items


class CacheReplyCodec:
    """Frames from the cache to the scheduler."""

    def size_bytes(self, item: CacheReply) -> int:
        return len(item.value or b"") if isinstance(item, LookupResult) else 0

    def encode(self, items: list[CacheReply]) -> bytes:
        frame = pb.LookupResultFrame()
        for item in items:
            if isinstance(item, LookupResult):
                frame.results.add(id=item.id, value=item.value)
            else:
                frame.usage.CopyFrom(item.to_proto())
        return frame.SerializeToString()

    def decode(self, frame: bytes) -> list[CacheReply]:
        parsed = pb.LookupResultFrame.FromString(frame)
        items: list[CacheReply] = [
            LookupResult(each.id, each.value if each.HasField("value") else None)
            for each in parsed.results
        ]
        if parsed.HasField("usage"):
            usage = parsed.usage
            items.append(CacheUsage(**{name: getattr(usage, name) for name in _USAGE_FIELDS}))
        return items
