"""How schedulers and gateways tell each other what has been counted of models. Pure.

A gateway asks again and again, and has what a scheduler counted when that is gone. It gives that to
those that live, so that the gateway may end as well.
"""

from __future__ import annotations

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


class CountKeeper:
    """A gateway's end. store: all that it was told, of schedulers that live and that are gone."""

    def __init__(self) -> None:
        self.store = CountStore()
        # The last response of each scheduler that was in the last one, without its records.
        self._last: dict[int, pb.SchedulerCounts] = {}

    @property
    def schedulers(self) -> Collection[int]:
        """The ids of those that have responded last."""
        return self._last.keys()

    def request(self) -> pb.CountsRequest:
        """The next request: it gives what no scheduler has that responded."""
        request = pb.CountsRequest()
        held: dict[int, int] = {}
        for scheduler in self._last.values():
            request.seen.add(scheduler=scheduler.scheduler, change=scheduler.change)
            for each in scheduler.held:
                held[each.id] = max(each.number, held.get(each.id, 0))
        request.kept.extend(
            each for each in self.store.all() if held.get(each.id, -1) < each.number
        )
        return request

    def update(self, response: pb.CountsResponse) -> None:
        """Take the response to a request."""
        before, self._last = self._last, {}
        for scheduler in response.schedulers:
            if scheduler.scheduler in before:
                self._remove_ended(before[scheduler.scheduler], scheduler)
        self.add(response)
        for scheduler in response.schedulers:
            del scheduler.changed[:]
            self._last[scheduler.scheduler] = scheduler

    def _remove_ended(self, before: pb.SchedulerCounts, now: pb.SchedulerCounts) -> None:
        """What a scheduler does not have any more. If it has nothing else of a version, that was
        unloaded, and others' records of it are of no use.
        """
        held = {each.id for each in now.held}
        gone = {each.id for each in before.held} - held
        versions = self.store.versions_of(gone)
        self.store.remove(gone)
        versions -= self.store.versions_of(held)
        versions.difference_update((each.model, each.version) for each in now.changed)
        self.store.end_loads(versions)

    def add(self, response: pb.CountsResponse) -> None:
        """Keep what schedulers have counted."""
        for scheduler in response.schedulers:
            for each in scheduler.changed:
                self.store.add(each)
