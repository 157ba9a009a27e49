"""Moves, snapshots and replays of sequences: the scheduler's sequence batcher and its transfers, an
executor's sequence states, and the cache's store, over streams and a link that break.

The model's state depends on each input and their order, so that a response says exactly which
requests its sequence has had.
"""

from __future__ import annotations

import logging
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec
from nereid.core.errors import NereidError
from nereid.core.wire.cache_messages import CacheLookup
from nereid.core.wire.messages import InferRequest, InferResponse, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid.version import is_compiled
from nereid_cache.memory_store import MemoryStore
from nereid_executor.batch.runner import Runner
from nereid_scheduler.batching.sequences.moves import Moves
from nereid_scheduler.core.requests.recovery import Recovery, Restore
from nereid_scheduler.versions.caching.cache_client import CacheClient
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.state_transfers import _BASE, StateTransfers
from nereid_scheduler.versions.version_context import VersionContext
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.instance_wire import InstanceWire
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.scheduler.cache_site import SECRETS
from tests.support.scheduler.samples import head_of, model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator


_CONFIG = """
max_batch_size: 2
input { name: "I" data_type: TYPE_INT32 dims: 1 }
output { name: "O" data_type: TYPE_INT32 dims: 1 }
sequence_batching {
  max_sequence_idle_microseconds: 3600000000
  direct { }
  state { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: 1 }
}
parameters { key: "sequence_snapshot_interval" value { string_value: "%d" } }
"""
_HEAD = head_of([("I", "INT32", [1, 1])])
_LENGTH = 3
_MODELS = {interval: model_of(_CONFIG % interval, backend="onnxruntime") for interval in range(4)}


def _next(state: int, value: int) -> int:
    return (state * 7 + value) % 10007


class _Model:
    """A state to which the order of the inputs matters."""

    description = EMPTY_DESCRIPTION

    def execute(self, inputs: dict[str, Any], outputs: Any) -> list[Any]:
        after = ((inputs["S"] * 7 + inputs["I"]) % 10007).astype(np.int32)
        return [after for _ in outputs]

    def close(self) -> None:
        """Do nothing."""


class _Executor(InstanceWire):
    """One instance at its executor, and its stream."""

    def __init__(self, world: SequenceWorld, number: int, config: Any) -> None:
        self.connect(world.loop, world.model, number, f"i{number}", has_states=True)
        spec = InstanceSpec(config=config, version=1, version_path=Path("1"), name=self.name)
        self.runner = Runner(spec, _Model())
        self.lost = self.unloaded = self.retiring = False

    def describe(self, batch: pb.Batch) -> str:
        what = f"export {list(batch.exported_slots)}" if batch.exported_slots else "execute"
        inputs = [each.id for each in batch.members]
        restores = [
            len(each.restore.requests) for each in batch.members if each.HasField("restore")
        ]
        return f"{what} {inputs} restoring {restores}" if restores else f"{what} {inputs}"

    def on_batch(self, message: Any) -> None:
        self.runner.on_frame(message.body, lambda frame: self.reply(frame, f"replies: {message}"))

    def unload(self) -> None:
        self.unloaded = True


class SequenceWorld(World):
    """Sequences, and two instances, of which each can drain or be lost."""

    def __init__(self, interval: int, *, store: bool, sequences: int) -> None:
        """interval: of snapshots; 0: none. store: they are kept in the cache."""
        self.names = range(1, sequences + 1)
        self.loop = VirtualLoop("scheduler")
        self.responses: dict[tuple[int, int], list[InferResponse]] = {}
        self.used: set[str] = set()
        self.link_up = True
        self.pending = 0
        self.on_items: Any = None
        self.on_up: Any = None
        self.on_down: Any = None
        self.to_cache = Channel("to cache", self._on_request)
        self.from_cache = Channel("from cache", lambda item: self.loop.run(self.on_items, [item]))
        self.store = MemoryStore(1 << 20, clock=self.loop.time)
        self.executors: list[_Executor] = []
        self.loop.run(self._start, interval, store)
        self.interval = interval

    def _start(self, interval: int, store: bool) -> None:
        link: Any = self
        self.client = CacheClient(link, SECRETS, 60.0, in_this_process=True) if store else None
        config = _MODELS[interval]
        self.model = ModelVersion(config, 1, VersionContext(snapshots=self.client))
        for _ in range(2):
            self._add_executor()

    def _add_executor(self) -> None:
        executor = _Executor(self, len(self.executors), self.model.config.proto)
        self.executors.append(executor)
        self.model.pool.roster.add(executor.instance)

    # ---- the cache's link

    @property
    def up(self) -> bool:
        return self.link_up

    def send(self, item: Any) -> None:
        self.to_cache.send(item)

    def close(self) -> None:
        """Do nothing."""

    def _on_request(self, item: Any) -> None:
        def on_found(results: list[Any]) -> None:
            for each in results:
                self.from_cache.send(each)

        is_lookup = isinstance(item, CacheLookup)
        self.store.exchange([item] if is_lookup else [], [] if is_lookup else [item], on_found)

    # ---- steps

    def actions(self) -> Iterable[Action]:
        yield from self.loop.turns()
        for executor in self.executors:
            yield from executor.batches.arrivals()
            yield from executor.replies.arrivals()
        yield from self.to_cache.arrivals()
        yield from self.from_cache.arrivals()
        for step, which in sorted((self._step(each), each) for each in self.names):
            before = self.responses.get((which, step - 1), [None])
            # One after the other, until one fails.
            if step < _LENGTH and before and (before[0] is None or before[0].error is None):
                text = f"request {which}.{step}"
                yield Action(f"client {which}", text, partial(self._submit, which, step))
        if not self.link_up:
            yield Action("link", "the link comes up", self._reconnect)
        for executor in self.executors:
            if executor.batches.broken and not executor.lost:
                yield Action("streams", f"{executor.name} is lost", partial(self._lose, executor))
        yield from self._disruptions()

    def _disruptions(self) -> Iterator[Action]:
        live = [each for each in self.executors if not each.batches.broken and not each.unloaded]
        if "lost" not in self.used:
            for each in live:
                text = f"{each.name}'s stream breaks"
                yield Action("disruption", text, partial(self._break_stream, each), disruption=True)
        if "drained" not in self.used:
            for each in live:
                text = f"{each.name} drains"
                yield Action("disruption", text, partial(self._drain, each), disruption=True)
        if self.client is not None and "link" not in self.used:
            yield Action("disruption", "the cache's link breaks", self._break_link, disruption=True)

    def _step(self, which: int) -> int:
        return sum(key[0] == which for key in self.responses)

    def _submit(self, which: int, step: int) -> None:
        payload = np.int32(self.value(which, step)).tobytes()
        request = InferRequest(which * 10 + step, _HEAD, [payload])
        request.parameters = {
            "sequence_id": which,
            "sequence_start": step == 0,
            "sequence_end": step == _LENGTH - 1,
        }
        responses = self.responses[which, step] = []
        self.loop.run(self._submit_or_fail, request, responses)

    def _submit_or_fail(self, request: InferRequest, responses: list[Any]) -> None:
        try:
            self.model.submit(request, responses.append)
        except NereidError as error:
            responses.append(InferResponse(request.id, error=error_status_of(error)))

    @staticmethod
    def value(which: int, step: int) -> int:
        return which * 100 + step

    def _break_stream(self, executor: _Executor) -> None:
        self.used.add("lost")
        executor.break_stream()

    def _lose(self, executor: _Executor) -> None:
        executor.lost = True
        self.loop.run(self.model.pool.lose_instance, executor.instance, "its stream broke")

    def _drain(self, executor: _Executor) -> None:
        self.used.add("drained")
        executor.retiring = True
        self.loop.run(self._add_executor)
        self.loop.run(self.model.pool.roster.retire, executor.instance)
        if executor.instance.at_work:
            executor.instance.on_idle = executor.unload
        else:
            executor.unload()

    def _break_link(self) -> None:
        self.used.add("link")
        self.link_up = False
        self.to_cache.close()
        self.from_cache.close()
        self.loop.run(self.on_down)

    def _reconnect(self) -> None:
        self.link_up = True
        self.to_cache.broken = self.from_cache.broken = False

    # ---- what holds

    def _may_fail(self) -> bool:
        """Whether a sequence's state may be lost, by what has happened."""
        return "link" in self.used or ("lost" in self.used and not self.interval)

    def check(self) -> None:
        for (which, step), responses in self.responses.items():
            assert len(responses) <= 1, f"request {which}.{step} has two responses"
            for response in responses:
                if response.error is not None:
                    assert self._may_fail(), f"{which}.{step} failed: {response.error.message}"
                    continue
                values = [self.value(which, each) for each in range(step + 1)]
                (payload,) = response.payloads
                assert isinstance(payload, bytes)
                got = int(np.frombuffer(payload, np.int32)[0])
                assert got == reduce(_next, values, 0), f"{which}.{step} misses a request"

    def check_at_rest(self) -> None:
        for (which, step), responses in self.responses.items():
            assert responses, f"request {which}.{step} has not ended"
        for executor in self.executors:
            if executor.retiring and not executor.lost:
                assert executor.unloaded, f"{executor.name} is never unloaded"
        assert self.model.dispatcher.pending == 0
        moves = self._moves
        assert not moves._exports, "an export is left"
        assert not moves.to_fetch, "a snapshot is never fetched"
        if all(each.error is None for (each,) in self.responses.values()):
            assert len(self.responses) == len(self.names) * _LENGTH
            assert moves.kept_bytes == 0, "a state is kept for a sequence that is over"

    @property
    def _moves(self) -> Moves:
        assert self.model.pool._sequences is not None
        return self.model.pool._sequences.moves

    def fingerprint(self) -> Hashable:
        sequences = self.model.pool._sequences
        assert sequences is not None

        def of(sequence: Any) -> Hashable:
            recovery = sequence.recovery
            return (
                sequence.executing,
                sequence.begun,
                sequence.lost,
                sequence.transfer,
                sequence.slot is not None and sequence.slot.index,
                sequence.waiting and len(sequence.waiting),
                recovery
                and (
                    recovery.base,
                    recovery.state,
                    len(recovery.requests),
                    recovery.done,
                    recovery.exact,
                    recovery.placed,
                    recovery.open,
                ),
            )

        return (
            tuple((key, len(each)) for key, each in self.responses.items()),
            tuple(
                (
                    tuple(map(str, each.batches.messages)),
                    tuple(map(str, each.replies.messages)),
                    each.batches.broken,
                    each.lost,
                    each.unloaded,
                    each.instance.batches.first is not None,
                    each.instance.handing_over,
                )
                for each in self.executors
            ),
            tuple(of(each) for each in sequences.sequences._open.values()),
            # A sequence that has had its END is known by its requests alone.
            tuple(
                (entry.request.id, entry.state, entry.member and of(entry.member.sequence))
                for entry in self.model.requests.entries
            ),
            tuple(type(each).__name__ for each in self.to_cache.messages),
            len(self.from_cache.messages),
            self.store.usage.stores,
            (self.link_up, frozenset(self.used), len(self.loop.ready)),
        )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# The interval of snapshots, whether the cache keeps them, how many sequences, and the bound.
_MOVES = (0, False, 3, 1)
_LOST_MOVES = (0, False, 2, 2)
_REPLAYS = (3, False, 1, 3)
_SNAPSHOTS = (2, False, 1, 3)
_STORED_SNAPSHOTS = (1, True, 1, 2)
_WORLDS = {
    "moves": _MOVES,
    "replays": _REPLAYS,
    "snapshots": _SNAPSHOTS,
    "stored snapshots": _STORED_SNAPSHOTS,
    "stored snapshots and replays": (2, True, 1, 2),
}
WORLDS: dict[str, Callable[[], World]] = {
    name: partial(SequenceWorld, interval, store=store, sequences=sequences)
    for name, (interval, store, sequences, _) in _WORLDS.items()
}


@pytest.mark.parametrize("world", WORLDS)
def test_sequences_go_on_where_they_were(world: str) -> None:
    found = explore(WORLDS[world], reorderings=_WORLDS[world][-1])
    assert found.failure is None, found.failure
    assert found.complete


@pytest.mark.parametrize("store", [False, True])
def test_sequences_go_on_in_random_orders(store: bool) -> None:
    make_world = partial(SequenceWorld, 2, store=store, sequences=2)
    found = explore_random(make_world, seeds=range(150))
    assert found.failure is None, found.failure


# ---- deliberate defects: methods of the product's machines that do something else


def _reversed_replay(self: Recovery) -> Restore | None:
    restore = _take_restore(self)
    return restore and Restore(restore.state, restore.requests[::-1])


def _never_restored(self: Recovery) -> Restore | None:
    _take_restore(self)
    return None


def _forgotten_request(self: Recovery, request: InferRequest) -> None:
    """Nothing is kept of a request that made no snapshot."""


def _snapshot_of_later(self: Recovery, state: bytes | None) -> None:
    requests = self.requests
    _set_base(self, state)
    self.requests = requests


def _lost_wake_up(self: Moves, sequence: Any, state: bytes | None, cause: str) -> None:
    on_restored, self._on_restored = self._on_restored, lambda _: None
    _end_fetch(self, sequence, state, cause)
    self._on_restored = on_restored


def _forgets_exports(self: Moves, instance: Any) -> list[Any]:
    self._exports.pop(instance, None)
    return []


def _export_by_position(
    self: Moves, instance: Any, slot_number: int, state: bytes, cause: str
) -> None:
    slot_number = max(self._exports.get(instance, {slot_number: None}))
    _end_export(self, instance, slot_number, state, cause)


def _no_fence(self: StateTransfers, sequence: Any, recovery: Recovery, value: Any) -> None:
    """An older snapshot is taken for the last one."""
    if value is not None:
        value = _BASE.pack(recovery.base) + value[_BASE.size :]
    _on_snapshot(self, sequence, recovery, value)


def _released_twice(self: Moves, sequence: Any) -> None:
    """A sequence that is over still has what it was given back for."""
    self._moved -= not self.interval


_take_restore, _set_base = Recovery.take_restore, Recovery.set_base
_end_fetch, _end_export = Moves.end_fetch, Moves.end_export
_on_snapshot = StateTransfers._on_snapshot

_DEFECTS: dict[str, tuple[tuple[int, bool, int, int], type, str, Any]] = {
    "replays in the wrong order": (_REPLAYS, Recovery, "take_restore", _reversed_replay),
    "never restored": (_MOVES, Recovery, "take_restore", _never_restored),
    "a forgotten request": (_REPLAYS, Recovery, "add_request", _forgotten_request),
    "requests that a snapshot has": (_SNAPSHOTS, Recovery, "set_base", _snapshot_of_later),
    "a lost wake-up": (_STORED_SNAPSHOTS, Moves, "end_fetch", _lost_wake_up),
    "forgotten exports": (_LOST_MOVES, Moves, "stop_exports", _forgets_exports),
    "exports by position": (_MOVES, Moves, "end_export", _export_by_position),
    "no fence for old snapshots": (_STORED_SNAPSHOTS, StateTransfers, "_on_snapshot", _no_fence),
    "a state released twice": (_LOST_MOVES, Moves, "_drop", _released_twice),
}


@pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be varied")
@pytest.mark.parametrize("name", _DEFECTS)
def test_deliberate_defects_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (interval, store, sequences, reorderings), *variant = _DEFECTS[name]
    monkeypatch.setattr(*variant)
    make_world = partial(SequenceWorld, interval, store=store, sequences=sequences)
    assert explore(make_world, reorderings=reorderings).failure is not None
