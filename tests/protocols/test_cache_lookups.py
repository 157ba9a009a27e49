"""Look-ups in the cache and single flight: the scheduler's cache client, flights and model version
against the cache's store, over a link and an instance's stream that break.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nereid.core.tensors.digest import DIGEST_BYTES
from nereid.core.wire.cache_messages import LookupResult
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid_cache.memory_store import MemoryStore
from nereid_cache.service import CacheService
from nereid_scheduler.core.requests.entry import RESPONDED, Entry
from nereid_scheduler.core.requests.single_flight import Flight, SingleFlight
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.caching.response_cache import ResponseCache
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.instance_wire import InstanceWire
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.scheduler.cache_site import SECRETS
from tests.support.scheduler.cached_model import CONFIG
from tests.support.scheduler.samples import head_of, model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator


_MODEL = model_of(CONFIG)
_HEAD = head_of([("I", "UINT8", [1, 1])])
# What each request asks for; the first has a deadline.
_INPUTS = (b"d", b"d", b"e")
_WITH_DEADLINE = 0


@dataclass(frozen=True)
class Parts:
    """The scheduler's machines."""

    client: type[CacheClient] = CacheClient
    cache: type[ResponseCache] = ResponseCache
    flights: type[SingleFlight[Entry]] = SingleFlight


class _End:
    """One end of the cache's link; in the other process's hands is a channel to it."""

    def __init__(self, name: str) -> None:
        self.up = True
        self.pending = 0
        self.on_items: Any = None
        self.on_up: Any = None
        self.on_down: Any = None
        self.channel = Channel(name, lambda item: self.on_items([item]))
        self.other: _End

    def send(self, item: object) -> None:
        if self.up:
            self.other.channel.send(item)

    def close(self) -> None:
        self.up = False


class _Executor(InstanceWire):
    """One instance: it executes a batch when that arrives."""

    def __init__(self, world: CacheWorld, number: int) -> None:
        self.revision = world.revision
        self.connect(world.loop, world.model, number, f"i{number}", revision=self.revision)
        self.executed: list[bytes] = []

    def describe(self, batch: pb.Batch) -> str:
        return f"execute {[each.payloads[0].inline for each in batch.members]}"

    def on_batch(self, message: Any) -> None:
        self.execute(message)

    def execute(self, message: Any, error: str = "") -> None:
        batch = pb.Batch.FromString(message.body)
        reply = pb.Executed(id=batch.id)
        for member in batch.members:
            self.executed.append(member.payloads[0].inline)
            response = reply.responses.add()
            if error:
                response.error.code, response.error.message = 13, error
            else:
                response.head = b"head"
                response.payloads.add(inline=member.payloads[0].inline + self.revision)
        self.reply(reply.SerializeToString(), error or "executed")

    def fail_batch(self) -> None:
        self.execute(self.batches.messages.popleft(), "no luck")


class CacheWorld(World):
    """Requests, of which two are identical; in a burst, or one after the other."""

    def __init__(self, parts: Parts, *, burst: bool, inputs: tuple[bytes, ...] = _INPUTS) -> None:
        self.burst = burst
        self.inputs = inputs
        self.loop = VirtualLoop("scheduler")
        self.cache_loop = VirtualLoop("cache")
        self.entries: dict[int, Entry] = {}
        self.responses: dict[int, list[InferResponse]] = {n: [] for n in range(len(inputs))}
        self.cancelled: set[int] = set()
        self.begun_under: dict[int, bytes] = {}
        self.revision = b"r"
        # Something happened that permits a second execution.
        self.disturbed = False
        self.executors: list[_Executor] = []
        self.stream_broke = False
        self.used: set[str] = set()
        self.ours, self.theirs = _End("results"), _End("cache")
        self.ours.other, self.theirs.other = self.theirs, self.ours
        self.link_broke = False
        self.loop.run(self._start, parts)
        self.store = MemoryStore(1 << 20, clock=self.cache_loop.time)
        self.service = self.cache_loop.run(CacheService, self.store)
        self.cache_loop.run(self.service.attach, self.theirs)
        self.ours.channel.deliver = lambda item: self.loop.run(self.ours.on_items, [item])
        self.theirs.channel.deliver = lambda item: self.cache_loop.run(self.theirs.on_items, [item])

    def _start(self, parts: Parts) -> None:
        self.client = parts.client(self.ours, SECRETS, 5.0, in_this_process=True)
        context = VersionContext(QueueLimits(), cache=self.client)
        self.model = ModelVersion(_MODEL, 1, context)
        self.cache = self.model.cache = parts.cache(self.model, self.client, 0)
        self.cache._flights = parts.flights()
        self.model.set_revision(self.revision)
        self._add_executor()

    # ---- steps

    def actions(self) -> Iterable[Action]:
        waiting = [n for n in self.responses if n not in self.entries][:1]
        submits = [Action("client", f"request {n}", partial(self._submit, n)) for n in waiting]
        if self.burst:
            yield from submits
        yield from self.loop.turns()
        for executor in self.executors:
            yield from executor.batches.arrivals()
            yield from executor.replies.arrivals()
        yield from self.theirs.channel.arrivals()
        yield from self.ours.channel.arrivals()
        if not self.burst:
            yield from submits
        if self.stream_broke:
            yield Action("stream", "the scheduler sees the stream's end", self._see_stream_end)
        if self.link_broke:
            yield Action("link", "the scheduler sees the link's end", self._see_link_end)
        if not self.ours.up:
            yield Action("link", "the link comes up", self._reconnect)
        for each in self._timeouts():
            yield Action(each.actor, each.text, partial(self._disturb, each.perform))
        for number, entry in self.entries.items():
            if entry.state is not RESPONDED:
                yield Action(
                    "client",
                    f"{number} is cancelled",
                    partial(self._cancel, number),
                    disruption=True,
                )
        last = self.executors[-1]
        disruptions = {
            "the link breaks": (self.ours.up and not self.link_broke, self._break_link),
            "the stream breaks": (not self.stream_broke, self._break_stream),
            "the model fails": (bool(last.batches.messages), last.fail_batch),
            "the files change": (not self.stream_broke, self._change_files),
        }
        for text, (enabled, perform) in disruptions.items():
            if enabled and text not in self.used:
                yield Action("fault", text, partial(self._use, text, perform), disruption=True)

    def _timeouts(self) -> list[Action]:
        # The queue's own timer finds nothing due: in it, time stands still.
        return [each for each in self.loop.timeouts() if "Rearmable" not in each.text]

    def _use(self, text: str, perform: Any) -> None:
        self.used.add(text)
        self._disturb(perform)

    def _disturb(self, perform: Any) -> None:
        self.disturbed = True
        perform()

    def _submit(self, number: int) -> None:
        self.begun_under[number] = self.revision
        content = self.inputs[number]
        request = InferRequest(number, _HEAD, [content], digest=content * DIGEST_BYTES)
        if number == _WITH_DEADLINE:
            request.deadline = 1e9
        self.entries[number] = self.loop.run(
            self.model.submit, request, self.responses[number].append
        )

    def _cancel(self, number: int) -> None:
        self.disturbed = True
        self.cancelled.add(number)
        self.loop.run(self.model.cancel, self.entries[number])

    def _break_link(self) -> None:
        self.ours.channel.close()
        self.theirs.channel.close()
        self.link_broke = True
        # The store lives on, as one outside of the cache's process does.
        self.cache_loop.run(self.theirs.on_down)

    def _see_link_end(self) -> None:
        self.link_broke = False
        self.ours.up = False
        self.loop.run(self.ours.on_down)

    def _reconnect(self) -> None:
        self.ours.up = True
        self.ours.channel.broken = self.theirs.channel.broken = False
        self.cache_loop.run(self.service.attach, self.theirs)

    def _add_executor(self) -> None:
        self.executors.append(_Executor(self, len(self.executors)))
        self.model.pool.roster.add(self.executors[-1].instance)

    def _see_stream_end(self) -> None:
        self.stream_broke = False
        self.loop.run(
            self.model.pool.lose_instance, self.executors[-1].instance, "its stream broke"
        )
        self.loop.run(self._add_executor)

    def _break_stream(self) -> None:
        self.stream_broke = True
        self.executors[-1].break_stream()

    def _change_files(self) -> None:
        """The old instance still runs what it has, and nothing more."""
        self.revision = b"s"
        self.loop.run(self.model.set_revision, self.revision)
        self.loop.run(self.model.pool.roster.retire, self.executors[-1].instance)
        self.loop.run(self._add_executor)

    # ---- what holds

    def check(self) -> None:
        for number, responses in self.responses.items():
            assert len(responses) <= 1, f"request {number} has two responses"
            if not responses:
                continue
            assert number not in self.cancelled, f"request {number} has a response, cancelled"
            (response,) = responses
            if response.error is None:
                content = response.payloads[0]
                assert isinstance(content, bytes)
                assert content[:1] == self.inputs[number], (
                    f"request {number} has another's response"
                )
                assert content[1:] == self.entries[number].revision, "computed by another revision"
                assert content[1:] >= self.begun_under[number], f"{number} has a stale response"

    def check_at_rest(self) -> None:
        for number, responses in self.responses.items():
            ended = len(responses) + (number in self.cancelled)
            assert ended == 1, f"request {number} has ended {ended} times"
        assert self.model.dispatcher.pending == 0
        assert len(self.cache._flights) == 0, "a flight is left"
        assert self.cache._waiting == 0, "entries are counted as waiting"
        assert not self.client._lookups, "look-ups are left"
        assert all(entry.cache_lookup is None for entry in self.entries.values())
        if not self.disturbed:
            executed = [each for executor in self.executors for each in executor.executed]
            assert sorted(executed) == sorted(set(self.inputs)), "identical requests ran twice"
            assert all(responses[0].error is None for responses in self.responses.values())

    def fingerprint(self) -> Hashable:
        entries = tuple(
            (each.state, each.retries, number in self.cancelled, len(self.responses[number]))
            for number, each in self.entries.items()
        )
        executors = tuple(
            (
                tuple(map(str, each.batches.messages)),
                tuple(map(str, each.replies.messages)),
                each.instance.batches.first is not None,
            )
            for each in self.executors
        )
        lookups = tuple(self.client._lookups)
        waits = tuple(
            each.cache_lookup
            and (
                each.cache_lookup.waiting,
                each.cache_lookup.revision,
                each.cache_lookup.flight.leader.request.id,
                tuple(member.request.id for member in each.cache_lookup.flight.followers),
            )
            for each in self.entries.values()
        )
        return (
            entries,
            executors,
            waits,
            lookups,
            tuple(map(str, self.ours.channel.messages)),
            tuple(map(str, self.theirs.channel.messages)),
            self.ours.up,
            self.link_broke,
            self.stream_broke,
            self.revision,
            frozenset(self.used),
            self.disturbed,
            len(self.loop.ready),
            tuple(each.text for each in self._timeouts()),
            len(self.cache_loop.timers),
            self.store.usage.entries,
        )


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


WORLDS: dict[str, Callable[[], World]] = {
    "identical requests at once": partial(CacheWorld, Parts(), burst=True),
    "one after the other": partial(CacheWorld, Parts(), burst=False, inputs=_INPUTS[:2]),
}


@pytest.mark.parametrize(("world", "reorderings"), list(zip(WORLDS, (2, 3), strict=True)))
def test_lookups_and_flights_end_each_request_once(world: str, reorderings: int) -> None:
    found = explore(WORLDS[world], reorderings=reorderings)
    assert found.failure is None, found.failure
    assert found.complete


def test_lookups_and_flights_hold_in_random_orders() -> None:
    found = explore_random(lambda: CacheWorld(Parts(), burst=True), seeds=range(300))
    assert found.failure is None, found.failure


# ---- deliberate defects


class _ForgetsFollowers(SingleFlight[Entry]):
    """The leader leaves, and nobody takes its place."""

    def leave(self, flight: Flight[Entry], member: Entry) -> Entry | None:
        if member is flight.leader:
            self._forget(flight)
            return None
        return super().leave(flight, member)


class _LeavesFlights(SingleFlight[Entry]):
    """A flight that has landed can still be joined."""

    def land(self, flight: Flight[Entry]) -> list[Entry]:
        followers = list(flight.followers)
        flight.followers.clear()
        return followers


class _ByPosition(CacheClient):
    """A result is taken for that of the oldest look-up, whatever its id."""

    def _on_items(self, items: list[Any]) -> None:
        for item in items:
            if isinstance(item, LookupResult) and self._lookups:
                _, key, on_result = self._lookups.pop(next(iter(self._lookups)))
                self._on_value(key, on_result, item.value)


class _ReportsTwice(CacheClient):
    """A look-up that has timed out is still in the table when its result comes."""

    def _expire(self) -> None:
        for _, _, on_result in self._lookups.values():
            on_result(None)


class _LosesLookups(CacheClient):
    """The link's end forgets the pending look-ups, and nobody is called."""

    def _on_down(self) -> None:
        self._lookups.clear()
        super()._on_down()


class _NoFence(ResponseCache):
    """What an instance of another revision computed is stored as well."""

    def _store(self, entry: Entry, lookup: Any, response: InferResponse) -> None:
        entry.revision = lookup.revision
        super()._store(entry, lookup, response)


class _OldScope(ResponseCache):
    """Changed files leave the old revision's responses where they are found."""

    def set_revision(self, number: int, revision: bytes | None) -> None:
        if self._scope is None:
            super().set_revision(number, revision)


class _KeepsWaiting(ResponseCache):
    """Who gets a hit is not counted out."""

    def _send_hits(self, entries: Any, *args: Any) -> None:
        self._waiting += len(entries)
        super()._send_hits(entries, *args)


class _WakesNobody(ResponseCache):
    """A leader that is cancelled after its look-up leaves a new leader that is not queued."""

    def end_entry(self, entry: Entry, response: InferResponse | None) -> None:
        if response is None and entry.cache_lookup is not None:
            entry.cache_lookup.waiting, before = True, entry.cache_lookup.waiting
            self._waiting += not before
        super().end_entry(entry, response)


_DEFECTS = {
    "forgotten followers": Parts(flights=_ForgetsFollowers),
    "a flight that never ends": Parts(flights=_LeavesFlights),
    "results by position": Parts(client=_ByPosition),
    "a result reported twice": Parts(client=_ReportsTwice),
    "lost look-ups": Parts(client=_LosesLookups),
    "no fence of the revision": Parts(cache=_NoFence),
    "the old scope": Parts(cache=_OldScope),
    "a leaked count": Parts(cache=_KeepsWaiting),
    "a lost wake-up": Parts(cache=_WakesNobody),
}


@pytest.mark.parametrize("name", _DEFECTS)
def test_deliberate_defects_are_found(name: str) -> None:
    parts = _DEFECTS[name]
    assert any(
        explore(partial(CacheWorld, parts, burst=burst), reorderings=2).failure
        for burst in (False, True)
    )
