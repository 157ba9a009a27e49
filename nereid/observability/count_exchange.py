"""How schedulers and gateways tell each other what has been counted of models. Pure.

A gateway asks again and again, and has what a scheduler counted when that is gone. It gives that to
those that live, so that the gateway may end as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.observability.count_store import CountStore
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection


class CountSource:
    """A scheduler's end. store: what it counts, and what it was given."""

    def __init__(self, scheduler: int) -> None:
        """scheduler: an id that no other process has."""
        self._scheduler = scheduler
        self.store = CountStore()

    def respond(self, request: pb.CountsRequest) -> pb.CountsResponse:
        """Keep what was given; return what has changed since the gateway's last request."""
        for each in request.kept:
            self.store.add(each)
        seen = {each.scheduler: each.change for each in request.seen}
        response = self.changed_after(seen.get(self._scheduler, 0))
        response.schedulers[0].held.extend(
            pb.HeldCounts(id=each.id, number=each.number) for each in self.store.all()
        )
        return response

    def changed_after(self, change: int) -> pb.CountsResponse:
        """What has changed since then."""
        counts = pb.SchedulerCounts(
            scheduler=self._scheduler,
            change=self.store.change,
            changed=self.store.changed_after(change),
        )
        return pb.CountsResponse(schedulers=[counts])


@dataclass(slots=True)
class _Seen:
    """What a scheduler has, by its last response. held: its records' numbers, by ids."""

    change: int
    held: dict[int, int]


class CountKeeper:
    """A gateway's end. store: all that it was told, of schedulers that live and that are gone."""

    def __init__(self) -> None:
        self.store = CountStore()
        # Those that were in the last response.
        self._schedulers: dict[int, _Seen] = {}

    @property
    def schedulers(self) -> Collection[int]:
        """The ids of those that have responded last."""
        return self._schedulers.keys()

    def request(self) -> pb.CountsRequest:
        """The next request: it gives what no scheduler has that responded."""
        request = pb.CountsRequest()
        held: dict[int, int] = {}
        for scheduler, seen in self._schedulers.items():
            request.seen.add(scheduler=scheduler, change=seen.change)
            for record, number in seen.held.items():
                held[record] = max(number, held.get(record, 0))
        request.kept.extend(
            each for each in self.store.all() if held.get(each.id, -1) < each.number
        )
        return request

    def update(self, response: pb.CountsResponse) -> None:
        """Take the response to a request."""
        before, self._schedulers = self._schedulers, {}
        for counts in response.schedulers:
            held = {each.id: each.number for each in counts.held}
            self._schedulers[counts.scheduler] = _Seen(counts.change, held)
            if counts.scheduler in before:
                self._remove_ended(before[counts.scheduler].held.keys() - held.keys(), counts)
        self.add(response)

    def _remove_ended(self, gone: set[int], counts: pb.SchedulerCounts) -> None:
        """A scheduler does not have these records any more. If it has nothing else of a version,
        that was unloaded, and others' records of it are of no use.
        """
        versions = self.store.versions_of(gone)
        self.store.remove(gone)
        versions -= self.store.versions_of(each.id for each in counts.held)
        versions.difference_update((each.model, each.version) for each in counts.changed)
        self.store.end_loads(versions)

    def add(self, response: pb.CountsResponse) -> None:
        """Keep what schedulers have counted."""
        for scheduler in response.schedulers:
            for each in scheduler.changed:
                self.store.add(each)
