"""Leads a model version's requests through the response cache: lookup, execution, store.

Identical requests follow the first one, and get its response from the cache or the execution. Only
responses without an error are shared or stored, for the revision that computed them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nereid.core.errors import Cancelled, DeadlineExceeded, NereidError, Unavailable
from nereid.core.wire.messages import InferResponse, payload_bytes
from nereid_scheduler.batching.queues import deadline_passed, queue_full
from nereid_scheduler.core.requests.cache_lookup import CacheLookup
from nereid_scheduler.core.requests.entry import RequestState, about
from nereid_scheduler.core.requests.single_flight import Flight, SingleFlight
from nereid_scheduler.versions.caching.cache_keys import CacheKeys
from nereid_scheduler.versions.caching.cached_values import read_cached, write_cached

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from nereid.model_config import ModelConfig
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.versions.caching.cache_client import CacheClient
    from nereid_scheduler.versions.records import Records

_log = logging.getLogger(__name__)

# Errors of one request alone; its followers do not get them.
_OWN_ERRORS: Final = frozenset({Cancelled.code, DeadlineExceeded.code})
_now_ns = time.monotonic_ns


class CachedVersion(Protocol):
    """Interface of the model version that the cache serves."""

    name: str
    config: ModelConfig
    records: Records
    # True for an ensemble.
    calls_other_models: bool

    def enqueue(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry; raise Unavailable when the queue is full."""

    def finish(self, entry: Entry, response: InferResponse) -> None:
        """Send the response to an entry that was not queued."""

    def fail(self, entry: Entry, error: NereidError) -> None:
        """Fail an entry that no instance has."""


class CacheScope(NamedTuple):
    """Revision of a version, with the prefix of the keys for that revision."""

    prefix: bytes
    revision: bytes


class ResponseCache:
    """Handle the requests to one model version whose responses may be cached."""

    def __init__(self, version: CachedVersion, client: CacheClient, max_waiting: int) -> None:
        """max_waiting: maximum number of entries that wait for the cache; 0 means no limit."""
        self._version = version
        self._client = client
        self._max_waiting = max_waiting
        self._waiting = 0
        self._flights = SingleFlight["Entry"]()
        self._keys = CacheKeys((spec.name for spec in version.config.outputs), client.secrets)
        self._loop = asyncio.get_running_loop()
        # `None` until an instance is loaded, since the revision is unknown before that.
        self._scope: CacheScope | None = None

    def set_revision(self, number: int, revision: bytes | None) -> None:
        """Set the revision whose responses can be found. With `None`, nothing is cached."""
        if revision is None:
            self._scope = None
        else:
            prefix = self._keys.scope(self._version.name, number, revision)
            self._scope = CacheScope(prefix, revision)

    def submit_entry(self, entry: Entry, now_ns: int) -> None:
        """Look an entry up, or queue it; raise Unavailable if too many entries wait."""
        scope, request = self._scope, entry.request
        large_digest = None if scope is None else self._keys.large_digest(request)
        key = self._keys.key(request) if scope is not None and large_digest is None else b""
        if scope is None or (large_digest is None and not key):
            self._version.enqueue(entry, now_ns)
            return
        if self._max_waiting and self._waiting >= self._max_waiting:
            raise queue_full(entry)
        large = large_digest is not None
        flight = Flight(None, entry) if large else self._join_flight(scope, key, entry)
        entry.cache_lookup = lookup = CacheLookup(self, scope.prefix + key, scope.revision, flight)
        entry.state = RequestState.CACHE_LOOKUP
        self._waiting += 1
        if entry.deadline_ns is not None:
            left_s = max(0, entry.deadline_ns - now_ns) / 1e9
            lookup.timer = self._loop.call_later(left_s, self._expire, entry)
        if large_digest is not None:
            self._begin_digest(large_digest, entry, lookup)
        elif flight.leader is entry and not self._send_lookup(entry, flight):
            try:
                self._enqueue(entry, lookup, now_ns)
            except Unavailable:
                self._flights.land(flight)
                entry.cache_lookup = None
                raise

    def _begin_digest(
        self, large_digest: Callable[[], bytes], entry: Entry, lookup: CacheLookup
    ) -> None:
        def make_digest() -> bytes:
            return large_digest() if entry.cache_lookup is lookup else b""

        digest = self._loop.run_in_executor(self._client.threads, make_digest)
        digest.add_done_callback(partial(self._on_digest, entry, lookup))

    def _on_digest(self, entry: Entry, lookup: CacheLookup, future: asyncio.Future[bytes]) -> None:
        digest = b""
        try:
            digest = future.result()
        except asyncio.CancelledError:
            _log.debug("a digest was cancelled: the cache client is closed")
        except Exception:
            _log.exception("a digest failed; its request is not cached", extra=about(entry))
        if entry.cache_lookup is not lookup:
            return
        now_ns, scope = _now_ns(), self._scope
        entry.request.digest = digest
        if not digest or scope is None:
            entry.cache_lookup = None
            try:
                self._enqueue(entry, lookup, now_ns)
            except Unavailable as error:
                self._version.fail(entry, error)
            else:
                self._call_on_queued(entry, lookup)
            return
        key = self._keys.key(entry.request)
        lookup.key, lookup.revision = scope.prefix + key, scope.revision
        lookup.flight = flight = self._join_flight(scope, key, entry)
        if flight.leader is not entry:
            if flight.leader.state is not RequestState.CACHE_LOOKUP:
                self._call_on_queued(entry, lookup)
        elif not self._send_lookup(entry, flight):
            self._enqueue_leader(entry, lookup, now_ns)

    def _join_flight(self, scope: CacheScope, key: bytes, entry: Entry) -> Flight[Entry]:
        # A request must not follow another one that may wait for longer.
        identity: tuple[Hashable, ...] = (scope.prefix + key, entry.level, entry.request.timeout_us)
        if entry.request.caller and self._version.calls_other_models:
            # Through models that the version calls, an identical request may wait for this one.
            identity = (*identity, entry)
        return self._flights.join(identity, entry)

    def _send_lookup(self, entry: Entry, flight: Flight[Entry]) -> bool:
        assert entry.cache_lookup is not None, "a lookup for an entry without one"
        context = b"" if entry.trace is None else entry.trace.begin_lookup()
        on_result = partial(self._on_result, flight)
        return self._client.lookup(entry.cache_lookup.key, on_result, context)

    def _on_result(self, flight: Flight[Entry], value: bytes | None) -> None:
        lookup = flight.leader.cache_lookup
        if lookup is None:
            return  # All members of the flight were cancelled.
        now_ns = _now_ns()
        response = None if value is None else read_cached(value)
        if response is None:
            self._enqueue_leader(flight.leader, lookup, now_ns)
        else:
            members = [flight.leader, *self._flights.land(flight)]
            self._send_hits(members, response, lookup.revision, now_ns)

    def _enqueue_leader(self, entry: Entry, lookup: CacheLookup, now_ns: int) -> None:
        """Queue a flight's leader after a miss. Its followers keep waiting for the response."""
        try:
            self._enqueue(entry, lookup, now_ns)
        except Unavailable as error:
            self._version.fail(entry, error)
            return
        for member in (entry, *lookup.flight.followers):
            if member.cache_lookup is not None:
                self._call_on_queued(member, member.cache_lookup)

    def _call_on_queued(self, entry: Entry, lookup: CacheLookup) -> None:
        if lookup.on_queued is not None:
            try:
                lookup.on_queued()
            except NereidError as error:
                self._version.fail(entry, error)

    def _enqueue(self, entry: Entry, lookup: CacheLookup, now_ns: int) -> None:
        lookup.waited_ns = now_ns - entry.received_ns
        self._end_wait(lookup)
        self._version.enqueue(entry, now_ns)

    def _expire(self, entry: Entry) -> None:
        self._version.fail(entry, deadline_passed(self._version.name))

    def needs_inline(self, lookup: CacheLookup, response: InferResponse) -> bool:
        """Return whether a response must be inline, since it will be stored or shared."""
        size_bytes = sum(map(payload_bytes, response.payloads))
        lookup.admitted = self._client.admits(lookup.key, size_bytes)
        stored = lookup.admitted and self._client.can_send(size_bytes)
        return stored or bool(lookup.flight.followers)

    def end_entry(self, entry: Entry, response: InferResponse | None) -> None:
        """End an entry's lookup. response: the last response; `None` if the entry was cancelled."""
        lookup, entry.cache_lookup = entry.cache_lookup, None
        assert lookup is not None, "an entry without a lookup"
        was_waiting = lookup.waiting
        self._end_wait(lookup)
        flight = lookup.flight
        if entry is not flight.leader:
            self._flights.leave(flight, entry)
        elif response is None or (
            response.error is not None and response.error.code in _OWN_ERRORS
        ):
            leader = self._flights.leave(flight, entry)
            if leader is not None and leader.cache_lookup is not None and not was_waiting:
                self._enqueue_leader(leader, leader.cache_lookup, _now_ns())
        elif (
            response.error is not None and entry.retries and response.error.code == Unavailable.code
        ):
            # Each execution lost an instance, and the followers would lose more. So they fail too.
            for follower in self._flights.land(flight):
                error = Unavailable(response.error.message, accepted=True)
                self._version.fail(follower, error)
        elif response.error is not None:
            self._enqueue_followers(flight)
        else:
            if response.segment_name:
                # A segment cannot be shared. These followers came after needs_inline().
                self._enqueue_followers(flight)
            elif followers := self._flights.land(flight):
                self._send_hits(followers, response, entry.revision, _now_ns())
            self._store(entry, lookup, response)

    def _enqueue_followers(self, flight: Flight[Entry]) -> None:
        """Queue all followers of a failed leader at once, so that they may share a batch."""
        now_ns = _now_ns()
        for entry in self._flights.land(flight):
            if entry.cache_lookup is not None:
                entry.cache_lookup.flight = Flight(flight.identity, entry)
                self._enqueue_leader(entry, entry.cache_lookup, now_ns)

    def _send_hits(
        self, entries: Sequence[Entry], response: InferResponse, revision: bytes, now_ns: int
    ) -> None:
        """Send these entries the response that this revision computed. They count as cache hits."""
        for entry in entries:
            lookup, entry.cache_lookup = entry.cache_lookup, None
            if lookup is None:
                continue
            self._end_wait(lookup)
            if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
                self._expire(entry)
                continue
            entry.revision = revision
            hit = InferResponse(0, response.head, list(response.payloads))
            self._version.finish(entry, hit)

    def _store(self, entry: Entry, lookup: CacheLookup, response: InferResponse) -> None:
        """Store a response, unless an instance of another revision computed it."""
        started_ns = _now_ns()
        size_bytes = sum(map(payload_bytes, response.payloads))
        valid = lookup.admitted and entry.revision == lookup.revision
        if valid and not self._client.can_send(size_bytes):
            # The response must not be serialised in vain.
            self._client.failures += 1
        elif valid and (value := write_cached(response)) is not None:
            context = b"" if entry.trace is None else entry.trace.lookup
            self._client.store(lookup.key, value, context)
        self._version.records.end_miss(lookup.waited_ns, _now_ns() - started_ns)

    def _end_wait(self, lookup: CacheLookup) -> None:
        if lookup.waiting:
            lookup.waiting = False
            self._waiting -= 1
        if lookup.timer is not None:
            lookup.timer.cancel()
            lookup.timer = None
