"""What has been counted of model versions, by schedulers that live and by those that are gone.

Gateways and schedulers keep it and give it to each other, so that counters do not fall when a
scheduler is lost, or a model moves to another one. Records are found by their ids, and of one
record the later state counts, so that nothing is counted twice, whatever comes in which order and
how often. Pure.
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

# By the qualified name of a model and its version.
VersionKey: TypeAlias = tuple[str, str]

# Of one version; the older half becomes one record then.
_MAX_RECORDS: Final = 8
# Those that have not changed for longest are forgotten first: models that nobody has any more.
_MAX_VERSIONS: Final = 16_384

_COUNTED: Final = frozenset(each.name for each in metrics.declared_families())


class CountStore:
    """The records of the loads that are served, by model version."""

    def __init__(
        self, *, max_records: int = _MAX_RECORDS, max_versions: int = _MAX_VERSIONS
    ) -> None:
        self._max_records = max_records
        self._max_versions = max_versions
        self._versions: dict[VersionKey, dict[int, pb.VersionCounts]] = {}
        self._keys: dict[int, VersionKey] = {}
        # By id, which change it came with; the last one is at the end.
        self._changes: dict[int, int] = {}
        self.change = 0
        # When the latest load began that it was ever told of.
        self.latest_load_ns = 0
        # Sums that have been asked for and are still right.
        self._sums: dict[VersionKey, pb.VersionCounts] = {}

    def add(self, counts: pb.VersionCounts) -> None:
        """Keep a record, unless a later state of it, or what includes it, is known, or its load was
        followed by another one.
        """
        self.latest_load_ns = max(self.latest_load_ns, counts.loaded_ns)
        key = counts.model, counts.version
        records = self._versions.get(key, {})
        if counts.loaded_ns < _loaded_anew_ns(records.values()):
            return
        replaced = []
        for each in records.values():
            if each.id == counts.id:
                if counts.number <= each.number:
                    return
            elif not _members(each).isdisjoint(_members(counts)):
                # Whoever combines takes the first ones: the larger sum has all of the smaller one.
                if (len(each.includes), each.id) > (len(counts.includes), counts.id):
                    return
                replaced.append(each.id)
            elif not counts.continues and each.loaded_ns < counts.loaded_ns:
                replaced.append(each.id)
        self._forget(replaced)
        # At the end: what changes is not forgotten.
        records = self._versions.pop(key, {})
        self._versions[key] = records
        self._set(records, counts)
        if len(records) > self._max_records:
            first = _by_age(records.values())[: len(records) // 2]
            self._forget([each.id for each in first])
            self._set(records, combine(first))
        if len(self._versions) > self._max_versions:
            self._forget(list(next(iter(self._versions.values()))))

    def end_loads(self, keys: Iterable[VersionKey]) -> None:
        """Forget all records of these versions: their models were unloaded."""
        for key in keys:
            self._forget(list(self._versions.get(key, ())))

    def remove(self, ids: Iterable[int]) -> None:
        """Forget these records, if they are here."""
        self._forget([each for each in ids if each in self._keys])

    def versions_of(self, ids: Iterable[int]) -> set[VersionKey]:
        """The versions of those records that are here."""
        return {self._keys[each] for each in ids if each in self._keys}

    def all(self) -> Iterator[pb.VersionCounts]:
        """All records."""
        for records in self._versions.values():
            yield from records.values()

    def changed_after(self, change: int) -> list[pb.VersionCounts]:
        """The records that came after this change."""
        return [
            self._versions[self._keys[each]][each]
            for each, at in self._changes.items()
            if at > change
        ]

    def shared(self) -> Iterator[pb.VersionCounts]:
        """The sum for each version that several have counted, one after the other."""
        for key, records in self._versions.items():
            if len(records) > 1:
                if key not in self._sums:
                    self._sums[key] = combine(records.values())
                yield self._sums[key]

    def _set(self, records: dict[int, pb.VersionCounts], counts: pb.VersionCounts) -> None:
        self.change += 1
        # A part of a message keeps all of it in memory.
        kept = records[counts.id] = pb.VersionCounts()
        kept.CopyFrom(counts)
        key = self._keys[counts.id] = counts.model, counts.version
        self._sums.pop(key, None)
        self._changes.pop(counts.id, None)
        self._changes[counts.id] = self.change

    def _forget(self, ids: Iterable[int]) -> None:
        for each in ids:
            key = self._keys.pop(each)
            self._sums.pop(key, None)
            del self._versions[key][each], self._changes[each]
            if not self._versions[key]:
                del self._versions[key]


def combine(records: Iterable[pb.VersionCounts]) -> pb.VersionCounts:
    """The sum of what was counted of one version."""
    ordered = _by_age(records)
    first = ordered[0]
    includes = sorted(set().union(*map(_members, ordered)))
    total = pb.VersionCounts(
        # The same for all who combine the same.
        id=_id_of(includes),
        model=first.model,
        version=first.version,
        loaded_ns=first.loaded_ns,
        continues=first.continues,
        number=sum(each.number for each in ordered),
        exposition=merge_pages([each.exposition for each in ordered], _COUNTED),
        includes=includes,
    )
    for each in ordered:
        if each.HasField("statistics"):
            add_statistics(total.statistics, each.statistics)
    return total


def _id_of(includes: Iterable[int]) -> int:
    digest = hashlib.blake2b(
        b"".join(each.to_bytes(8, "little") for each in includes), digest_size=8
    )
    return int.from_bytes(digest.digest(), "little")


def _members(counts: pb.VersionCounts) -> set[int]:
    return {counts.id, *counts.includes}


def _by_age(records: Iterable[pb.VersionCounts]) -> list[pb.VersionCounts]:
    return sorted(records, key=lambda each: (each.loaded_ns, each.id))


def _loaded_anew_ns(records: Iterable[pb.VersionCounts]) -> int:
    """When the load began with which the counts begin; 0: that is not known."""
    return max((each.loaded_ns for each in records if not each.continues), default=0)


def add_statistics(total: kserve_pb2.ModelStatistics, other: kserve_pb2.ModelStatistics) -> None:
    """Add what another scheduler has counted of a version; the last inference is the later one."""
    total.name, total.version = other.name, other.version
    total.last_inference = max(total.last_inference, other.last_inference)
    total.inference_count += other.inference_count
    total.execution_count += other.execution_count
    _add_durations(total.inference_stats, other.inference_stats)
    by_size = {each.batch_size: each for each in total.batch_stats}
    for each in other.batch_stats:
        size = by_size.get(each.batch_size)
        if size is None:
            size = total.batch_stats.add(batch_size=each.batch_size)
        _add_durations(size, each)
    total.batch_stats.sort(key=lambda each: each.batch_size)
    for index, responses in other.response_stats.items():
        _add_durations(total.response_stats[index], responses)


def _add_durations(total: Message, other: Message) -> None:
    for field, value in other.ListFields():
        if field.message_type is None:
            continue
        duration = getattr(total, field.name)
        # Readers expect it even if it is all zeros.
        duration.SetInParent()
        duration.count += value.count
        duration.ns += value.ns
