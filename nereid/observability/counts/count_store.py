"""Counters of model versions, from schedulers that are running and from those that are gone.

Only the latest state of a record (by id) counts, so nothing is counted twice.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, TypeAlias

from nereid.observability import metrics
from nereid.observability.metrics_page import merge_pages
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message

# Qualified name of a model, and a version of it.
VersionKey: TypeAlias = tuple[str, str]

# Maximum records per version. Beyond it, the older half is combined into one.
_MAX_RECORDS: Final = 8
# Maximum versions. Beyond it, the version that is unchanged for longest is forgotten.
_MAX_VERSIONS: Final = 16_384

_COUNTED: Final = frozenset(family.name for family in metrics.declared_families())


class CountStore:
    """Store of the counters of model versions. A record has the counters of one or more loads."""

    def __init__(
        self, *, max_records: int = _MAX_RECORDS, max_versions: int = _MAX_VERSIONS
    ) -> None:
        self._max_records = max_records
        self._max_versions = max_versions
        self._versions: dict[VersionKey, dict[int, pb.VersionCounts]] = {}
        self._keys: dict[int, VersionKey] = {}
        # Key: a record's id. Value: the number of the change that added it. The latest comes last.
        self._changes: dict[int, int] = {}
        self.change = 0
        self.latest_load_ns = 0
        # Sums of versions, until a record of the version changes.
        self._sums: dict[VersionKey, pb.VersionCounts] = {}

    def add(self, counts: pb.VersionCounts) -> None:
        """Keep a record, unless the store has a later state, a sum with it, or a later load."""
        self.latest_load_ns = max(self.latest_load_ns, counts.loaded_ns)
        key = counts.model, counts.version
        records = self._versions.get(key, {})
        if counts.loaded_ns < _loaded_anew_ns(records.values()):
            return
        replaced = []
        for record in records.values():
            if record.id == counts.id:
                if counts.number <= record.number:
                    return
            elif not _members(record).isdisjoint(_members(counts)):
                # Both are sums. Sums combine the oldest records, so the larger includes the
                # smaller.
                if (len(record.includes), record.id) > (len(counts.includes), counts.id):
                    return
                replaced.append(record.id)
            elif not counts.continues and record.loaded_ns < counts.loaded_ns:
                replaced.append(record.id)
        self._forget(replaced)
        # Versions that change move to the end, so that they are not forgotten.
        records = self._versions.pop(key, {})
        self._versions[key] = records
        self._set(records, counts)
        if len(records) > self._max_records:
            first = _by_age(records.values())[: len(records) // 2]
            self._forget([record.id for record in first])
            self._set(records, combine(first))
        if len(self._versions) > self._max_versions:
            self._forget(list(next(iter(self._versions.values()))))

    def end_loads(self, keys: Iterable[VersionKey]) -> None:
        """Forget all records of these versions, which were unloaded."""
        for key in keys:
            self._forget(list(self._versions.get(key, ())))

    def remove(self, ids: Iterable[int]) -> None:
        """Forget the records with these ids; ignore unknown ids."""
        self._forget([record for record in ids if record in self._keys])

    def versions_of(self, ids: Iterable[int]) -> set[VersionKey]:
        """Return the versions of the records with these ids; ignore unknown ids."""
        return {self._keys[record] for record in ids if record in self._keys}

    def all(self) -> Iterator[pb.VersionCounts]:
        """Yield all records."""
        for records in self._versions.values():
            yield from records.values()

    def changed_after(self, change: int) -> list[pb.VersionCounts]:
        """Return the records that changed after the change with this number."""
        return [
            self._versions[self._keys[record]][record]
            for record, at in self._changes.items()
            if at > change
        ]

    def shared(self) -> Iterator[pb.VersionCounts]:
        """Yield one sum of records for each version that has several records."""
        for key, records in self._versions.items():
            if len(records) > 1:
                if key not in self._sums:
                    self._sums[key] = combine(records.values())
                yield self._sums[key]

    def _set(self, records: dict[int, pb.VersionCounts], counts: pb.VersionCounts) -> None:
        self.change += 1
        # A part of a message keeps the whole message in memory, so copy the record.
        copied = records[counts.id] = pb.VersionCounts()
        copied.CopyFrom(counts)
        key = self._keys[counts.id] = counts.model, counts.version
        self._sums.pop(key, None)
        self._changes.pop(counts.id, None)
        self._changes[counts.id] = self.change

    def _forget(self, ids: Iterable[int]) -> None:
        for record in ids:
            key = self._keys.pop(record)
            self._sums.pop(key, None)
            del self._versions[key][record], self._changes[record]
            if not self._versions[key]:
                del self._versions[key]


def combine(records: Iterable[pb.VersionCounts]) -> pb.VersionCounts:
    """Return the sum of one version's records."""
    ordered = _by_age(records)
    first = ordered[0]
    includes = sorted(set().union(*map(_members, ordered)))
    total = pb.VersionCounts(
        # Processes that combine the same records must get the same id.
        id=_id_of(includes),
        model=first.model,
        version=first.version,
        loaded_ns=first.loaded_ns,
        continues=first.continues,
        number=sum(record.number for record in ordered),
        exposition=merge_pages([record.exposition for record in ordered], _COUNTED),
        includes=includes,
    )
    for record in ordered:
        if record.HasField("statistics"):
            add_statistics(total.statistics, record.statistics)
    return total


def _id_of(includes: Iterable[int]) -> int:
    digest = hashlib.blake2b(
        b"".join(record.to_bytes(8, "little") for record in includes), digest_size=8
    )
    return int.from_bytes(digest.digest(), "little")


def _members(counts: pb.VersionCounts) -> set[int]:
    return {counts.id, *counts.includes}


def _by_age(records: Iterable[pb.VersionCounts]) -> list[pb.VersionCounts]:
    return sorted(records, key=lambda record: (record.loaded_ns, record.id))


def _loaded_anew_ns(records: Iterable[pb.VersionCounts]) -> int:
    """Return the start of the last load that began counting anew, or 0."""
    return max((record.loaded_ns for record in records if not record.continues), default=0)


def add_statistics(total: kserve_pb2.ModelStatistics, other: kserve_pb2.ModelStatistics) -> None:
    """Add other statistics of a version to total. The last inference is the later of the two."""
    total.name, total.version = other.name, other.version
    total.last_inference = max(total.last_inference, other.last_inference)
    total.inference_count += other.inference_count
    total.execution_count += other.execution_count
    _add_durations(total.inference_stats, other.inference_stats)
    by_size = {stats.batch_size: stats for stats in total.batch_stats}
    for stats in other.batch_stats:
        size = by_size.get(stats.batch_size)
        if size is None:
            size = total.batch_stats.add(batch_size=stats.batch_size)
        _add_durations(size, stats)
    total.batch_stats.sort(key=lambda stats: stats.batch_size)
    for index, responses in other.response_stats.items():
        _add_durations(total.response_stats[index], responses)


def _add_durations(total: Message, other: Message) -> None:
    for field, value in other.ListFields():
        if field.message_type is None:
            continue
        duration = getattr(total, field.name)
        # Clients expect the duration to be present even if it is all zeros.
        duration.SetInParent()
        duration.count += value.count
        duration.ns += value.ns
