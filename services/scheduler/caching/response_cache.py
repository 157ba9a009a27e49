"""A model version's way through the response cache: look up, let one of alike requests run, store.

A request is looked up before it is queued; those like it that come meanwhile wait for what the
first one gets, from the cache or from its execution. A large one waits before that for its digest,
which a thread makes. Only answers without an error are shared or kept, and only under the revision
of the model that computed them. Knows the queue by its owner's three methods alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from nereid.core.codecs import read_response, write_response
from nereid.core.errors import Cancelled, DeadlineExceeded, NereidError, Unavailable
from nereid.core.messages import InferResponse, payload_bytes
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.batching.queues import deadline_passed, queue_full
from nereid.services.scheduler.caching.cache_keys import CacheKeys
from nereid.services.scheduler.caching.single_flight import Flight, SingleFlight
from nereid.services.scheduler.requests.entry import State, about

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.caching.cache_client import CacheClient
    from nereid.services.scheduler.observability.statistics import ModelStatistics
    from nereid.services.scheduler.requests.entry import Entry

_log = logging.getLogger(__name__)

# Failures that are one request's own; those like it need not share them.
_ITS_OWN: Final = frozenset({Cancelled.code, DeadlineExceeded.code})
_now_ns = time.monotonic_ns


class Owner(Protocol):
    """The model version, as far as its cache knows it."""

    name: str
    config: ModelConfig
    statistics: ModelStatistics
    # It answers by what it asks of other models.
    asks_others: bool

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raises Unavailable when the queue is full."""

    def finish(self, entry: Entry, response: InferResponse) -> None:
        """The end of an entry that waited here: tell its answer."""

    def fail(self, entry: Entry, error: NereidError, now_ns: int) -> None:
        """The end of an entry that no instance has: tell why there is no answer."""


class Place(NamedTuple):
    """Where a version's answers are kept: what their keys begin with, and whose they are."""

    prefix: bytes
    revision: bytes


def place_of(name: str, number: int, revision: bytes) -> Place:
    """The place of a version's answers in one of its revisions."""
    # Of the name a digest: it may hold anything, and keys shall be short.
    model = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    return Place(f"{model}:{number}:{revision.hex()}:".encode(), revision)


class Passage:
    """An entry's way through the cache.

    waiting -> queued -> ended, or waiting -> ended; the leader of a flight waits for the lookup,
    a follower for its leader. Until its digest is made, an entry is in a flight of its own, which
    nobody finds.
    """

    __slots__ = ("flight", "key", "on_queued", "revision", "timer", "waited_ns", "waiting")

    def __init__(self, key: bytes, revision: bytes, flight: Flight[Entry]) -> None:
        self.key = key
        self.revision = revision
        self.flight = flight
        self.waiting = True
        # From its arrival until it was queued: what looking it up cost.
        self.waited_ns = 0
        self.timer: asyncio.TimerHandle | None = None
        # Called when the flight's leader is queued; raises NereidError if this entry shall not wait
        # for that.
        self.on_queued: Callable[[], None] | None = None


class ResponseCache:
    """The requests of one model version that the cache may answer. most_waiting 0: any number."""

    def __init__(self, owner: Owner, client: CacheClient, most_waiting: int) -> None:
        self._owner = owner
        self._client = client
        self._most_waiting = most_waiting
        self._waiting = 0
        self._flights = SingleFlight["Entry"]()
        self._keys = CacheKeys(spec.name for spec in owner.config.outputs)
        self._loop = asyncio.get_running_loop()
        # None: no instance has been placed yet, so nobody knows whose answers these would be.
        self._place: Place | None = None

    def revise(self, place: Place | None) -> None:
        """From now on the version is another: what is kept of the old one is out of reach. None:
        it is one whose answers cannot be kept.
        """
        self._place = place

    # ---- from arrival to the queue

    def admit(self, entry: Entry, now_ns: int) -> None:
        """Take an entry in.

        Raises:
            Unavailable: too many are waiting, or the queue is full.
        """
        place, request = self._place, entry.request
        work = None if place is None else self._keys.long_work(request)
        key = self._keys.key(request) if place is not None and work is None else b""
        if place is None or (work is None and not key):
            self._owner.enqueue(entry, now_ns)
            return
        if self._most_waiting and self._waiting >= self._most_waiting:
            raise queue_full(entry)
        flight = Flight(None, entry) if work is not None else self._join(place, key, entry)
        entry.passage = passage = Passage(place.prefix + key, place.revision, flight)
        entry.state = State.WAITING
        self._waiting += 1
        if entry.deadline_ns is not None:
            left_s = max(0, entry.deadline_ns - now_ns) / 1e9
            passage.timer = self._loop.call_later(left_s, self._expire, entry)
        if work is not None:
            self._make_digest(work, entry, passage)
        elif flight.leader is entry and not self._look_up(entry, flight):
            try:
                self._enqueue(entry, passage, now_ns)
            except Unavailable:
                self._flights.land(flight)
                entry.passage = None
                raise
            if entry.trace is not None:
                entry.trace.end_lookup(entry.received_ns, now_ns, hit=False)

    def _make_digest(self, work: Callable[[], bytes], entry: Entry, passage: Passage) -> None:
        def make() -> bytes:
            return work() if entry.passage is passage else b""  # it may have been given up

        made = self._loop.run_in_executor(self._client.threads, make)
        made.add_done_callback(partial(self._go_on, entry, passage))

    def _go_on(self, entry: Entry, passage: Passage, made: asyncio.Future[bytes]) -> None:
        """Its digest is made, or cannot be."""
        digest = b""
        try:
            digest = made.result()
        except asyncio.CancelledError:
            _log.debug("a digest was left undone")
        except Exception:
            _log.exception("a digest could not be made", extra=about(entry))
        if entry.passage is not passage:
            return
        now_ns, place = _now_ns(), self._place
        entry.request.digest = digest
        if not digest or place is None:
            entry.passage = None
            try:
                self._enqueue(entry, passage, now_ns)
            except Unavailable as error:
                self._owner.fail(entry, error, now_ns)
            else:
                self._tell_queued(entry, passage, now_ns)
            return
        key = self._keys.key(entry.request)
        passage.key, passage.revision = place.prefix + key, place.revision
        passage.flight = flight = self._join(place, key, entry)
        if flight.leader is not entry:
            if flight.leader.state is not State.WAITING:
                self._tell_queued(entry, passage, now_ns)
        elif not self._look_up(entry, flight):
            self._queue(entry, passage, now_ns)

    def _join(self, place: Place, key: bytes, entry: Entry) -> Flight[Entry]:
        """Let an entry wait together with those that are like it."""
        # A request shall not wait for one that may wait longer than itself.
        alike: tuple[Hashable, ...] = (place.prefix + key, entry.level, entry.request.timeout_us)
        if entry.request.caller and self._owner.asks_others:
            # Nor for one that may, by way of other models, wait for the very model that asks.
            alike = (*alike, entry)
        return self._flights.join(alike, entry)

    def _look_up(self, entry: Entry, flight: Flight[Entry]) -> bool:
        """Ask for what this entry's flight is after; False: nobody can be asked now."""
        assert entry.passage is not None, "it is not on its way"
        context = b"" if entry.trace is None else entry.trace.begin_lookup()
        return self._client.lookup(entry.passage.key, partial(self._found, flight), context)

    def _found(self, flight: Flight[Entry], value: bytes | None) -> None:
        """The lookup for a flight is over."""
        passage = flight.leader.passage
        if passage is None:
            return  # all its members have given up
        now_ns = _now_ns()
        response = None if value is None else _read(value)
        if response is None:
            self._queue(flight.leader, passage, now_ns)
        else:
            members = [flight.leader, *self._flights.land(flight)]
            self._share(members, response, passage.revision, now_ns)

    def _queue(self, entry: Entry, passage: Passage, now_ns: int) -> None:
        if entry.trace is not None:
            entry.trace.end_lookup(entry.received_ns, now_ns, hit=False)
        try:
            self._enqueue(entry, passage, now_ns)
        except Unavailable as error:
            self._owner.fail(entry, error, now_ns)
            return
        for member in (entry, *passage.flight.followers):
            if member.passage is not None:
                self._tell_queued(member, member.passage, now_ns)

    def _tell_queued(self, entry: Entry, passage: Passage, now_ns: int) -> None:
        if passage.on_queued is not None:
            try:
                passage.on_queued()
            except NereidError as error:
                self._owner.fail(entry, error, now_ns)

    def _enqueue(self, entry: Entry, passage: Passage, now_ns: int) -> None:
        passage.waited_ns = now_ns - entry.received_ns
        entry.state = State.QUEUED
        self._release(passage)
        self._owner.enqueue(entry, now_ns)

    def _expire(self, entry: Entry) -> None:
        self._owner.fail(entry, deadline_passed(self._owner.name), _now_ns())

    # ---- the end

    def takes(self, passage: Passage, response: InferResponse) -> bool:
        """Whether others are told this answer, or it is kept; then it has to be inline."""
        size_bytes = sum(map(payload_bytes, response.payloads))
        return bool(passage.flight.followers) or self._client.has_room(size_bytes)

    def ended(self, entry: Entry, response: InferResponse | None) -> None:
        """An entry that came by here has been told its answer, or, without one, was given up."""
        passage, entry.passage = entry.passage, None
        assert passage is not None, "it did not come by here"
        was_waiting = passage.waiting
        self._release(passage)
        if was_waiting and entry.trace is not None and entry.trace.lookup:
            # Given up while the cache was asked, which tells of that in any case.
            entry.trace.end_lookup(entry.received_ns, _now_ns(), hit=False)
        flight = passage.flight
        if entry is not flight.leader:
            self._flights.leave(flight, entry)
        elif response is None or (response.error is not None and response.error.code in _ITS_OWN):
            heir = self._flights.leave(flight, entry)
            if heir is not None and heir.passage is not None and not was_waiting:
                self._queue(heir, heir.passage, _now_ns())
        elif (
            response.error is not None and entry.retries and response.error.code == Unavailable.code
        ):
            # Instances died with it, again and again: those like it would take more of them along.
            now_ns = _now_ns()
            for follower in self._flights.land(flight):
                error = Unavailable(response.error.message, accepted=True)
                self._owner.fail(follower, error, now_ns)
        elif response.error is not None:
            self._scatter(flight)
        else:
            if response.segment_name:
                # It was not taken, so that who has come since cannot have it either.
                self._scatter(flight)
            elif followers := self._flights.land(flight):
                self._share(followers, response, entry.revision, _now_ns())
            self._keep(entry, passage, response)

    def _scatter(self, flight: Flight[Entry]) -> None:
        """The leader failed: the others try for themselves, together rather than in a row."""
        now_ns = _now_ns()
        for entry in self._flights.land(flight):
            if entry.passage is not None:
                entry.passage.flight = Flight(flight.identity, entry)
                self._queue(entry, entry.passage, now_ns)

    def _share(
        self, entries: Sequence[Entry], response: InferResponse, revision: bytes, now_ns: int
    ) -> None:
        """Answer entries that waited with one answer, of this revision: all of them are hits."""
        for entry in entries:
            passage, entry.passage = entry.passage, None
            if passage is None:
                continue
            self._release(passage)
            if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
                self._expire(entry)
                continue
            if entry.trace is not None:
                entry.trace.end_lookup(entry.received_ns, now_ns, hit=True)
            entry.revision = revision
            self._owner.statistics.record_cache_hit(entry, now_ns - entry.received_ns, now_ns)
            self._owner.finish(entry, InferResponse(0, response.head, list(response.payloads)))

    def _keep(self, entry: Entry, passage: Passage, response: InferResponse) -> None:
        """Store what was computed, unless an instance of another revision computed it."""
        started_ns = _now_ns()
        size_bytes = sum(map(payload_bytes, response.payloads))
        valid = entry.revision == passage.revision
        if valid and not self._client.has_room(size_bytes):
            # To write it in vain would take as long.
            self._client.failures += 1
        elif valid and all(isinstance(payload, bytes) for payload in response.payloads):
            message = pb.InferResponse()
            write_response(response, message)
            context = b"" if entry.trace is None else entry.trace.lookup
            self._client.store(passage.key, message.SerializeToString(), context)
        self._owner.statistics.record_cache_miss(passage.waited_ns, _now_ns() - started_ns)

    def _release(self, passage: Passage) -> None:
        """It waits no longer."""
        if passage.waiting:
            passage.waiting = False
            self._waiting -= 1
        if passage.timer is not None:
            passage.timer.cancel()
            passage.timer = None


def _read(value: bytes) -> InferResponse | None:
    """The answer that was kept; None: the store holds something else."""
    try:
        response = read_response(pb.InferResponse.FromString(value))
    except DecodeError:
        _log.warning("the cache holds a value that is no answer; it is taken for a miss")
        return None
    return response if response.error is None and response.head else None
