"""Exchange of models' counters between schedulers and gateways, so that counters outlive both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.observability.counts.count_store import CountStore
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection


class CountSource:
    """A scheduler's end of the exchange. store holds its own and the gateways' records."""

    def __init__(self, scheduler: int) -> None:
        """Create an empty source; scheduler is an id that no other process has."""
        self._scheduler = scheduler
        self.store = CountStore()

    def respond(self, request: pb.CountsRequest) -> pb.CountsResponse:
        """Keep the records in a request; return records that changed since the last request."""
        for counts in request.kept:
            self.store.add(counts)
        seen = {entry.scheduler: entry.change for entry in request.seen}
        response = self.changed_after(seen.get(self._scheduler, 0))
        response.schedulers[0].held.extend(
            pb.HeldCounts(id=counts.id, number=counts.number) for counts in self.store.all()
        )
        return response

    def changed_after(self, change: int) -> pb.CountsResponse:
        """Return the records that changed after the change with this number."""
        counts = pb.SchedulerCounts(
            scheduler=self._scheduler,
            change=self.store.change,
            changed=self.store.changed_after(change),
        )
        return pb.CountsResponse(schedulers=[counts])


@dataclass(slots=True)
class _Seen:
    """The number of a scheduler's last change, and its records' numbers by id."""

    change: int
    held: dict[int, int]


class CountKeeper:
    """A gateway's end of the exchange. store has all records, also those of lost schedulers."""

    def __init__(self) -> None:
        self.store = CountStore()
        # Key: the id of a scheduler in the last response. Value: what it reported.
        self._schedulers: dict[int, _Seen] = {}

    @property
    def schedulers(self) -> Collection[int]:
        """Ids of the schedulers in the last response."""
        return self._schedulers.keys()

    def request(self) -> pb.CountsRequest:
        """Return the next request, with the records that no scheduler of the last response has."""
        request = pb.CountsRequest()
        held: dict[int, int] = {}
        for scheduler, seen in self._schedulers.items():
            request.seen.add(scheduler=scheduler, change=seen.change)
            for record, number in seen.held.items():
                held[record] = max(number, held.get(record, 0))
        request.kept.extend(
            counts for counts in self.store.all() if held.get(counts.id, -1) < counts.number
        )
        return request

    def update(self, response: pb.CountsResponse) -> None:
        """Keep the records of a response, and forget the records of unloaded versions."""
        before, self._schedulers = self._schedulers, {}
        for counts in response.schedulers:
            held = {record.id: record.number for record in counts.held}
            self._schedulers[counts.scheduler] = _Seen(counts.change, held)
            if counts.scheduler in before:
                self._remove_ended(before[counts.scheduler].held.keys() - held.keys(), counts)
        self.add(response)

    def _remove_ended(self, gone: set[int], counts: pb.SchedulerCounts) -> None:
        """Forget records that a scheduler no longer has.

        If it has no other record of a version, the version was unloaded for all schedulers.
        """
        versions = self.store.versions_of(gone)
        self.store.remove(gone)
        versions -= self.store.versions_of(record.id for record in counts.held)
        versions.difference_update((record.model, record.version) for record in counts.changed)
        self.store.end_loads(versions)

    def add(self, response: pb.CountsResponse) -> None:
        """Keep the records that schedulers sent."""
        for scheduler in response.schedulers:
            for counts in scheduler.changed:
                self.store.add(counts)
