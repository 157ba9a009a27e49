"""Schedulers that are killed, end and pass models on, and gateways that ask and end: what a gateway
shows of a load never falls, is never more than was counted, and lacks only what nobody had asked
for when a scheduler was killed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nereid.observability.counts.count_exchange import CountKeeper, CountSource
from nereid.observability.counts.count_store import CountStore
from nereid.pb import nereid_pb2 as pb

_MODELS = ("a", "b")
_SCHEDULERS = 2
_GATEWAYS = 2
_numbers = itertools.count(1)


@dataclass
class Record:
    """What one scheduler has counted of one load. lost: it was killed."""

    id: int
    loaded_ns: int
    continues: bool
    home: Scheduler
    count: int = 0
    lost: bool = False
    # By gateway: the count that it has got last.
    reported: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False)
class Scheduler:
    source: CountSource = field(default_factory=lambda: CountSource(next(_numbers)))
    serving: dict[str, Record] = field(default_factory=dict)

    def write(self, model: str) -> None:
        record = self.serving[model]
        message = pb.VersionCounts(
            id=record.id,
            model=model,
            version="1",
            loaded_ns=record.loaded_ns,
            continues=record.continues,
            # A state is a later one from the first on.
            number=record.count,
        )
        message.statistics.inference_count = record.count
        self.source.store.add(message)

    def load(self, model: str, *, continues: bool) -> Record:
        record = Record(next(_numbers), next(_numbers), continues, self)
        self.serving[model] = record
        self.write(model)
        return record


def shown(store: CountStore, model: str) -> int:
    return sum(each.statistics.inference_count for each in store.all() if each.model == model)


def exchange(keeper: CountKeeper, *schedulers: Scheduler) -> None:
    request, response = keeper.request(), pb.CountsResponse()
    for scheduler in schedulers:
        response.MergeFrom(scheduler.source.respond(request))
    keeper.update(response)


def test_of_two_gateways_that_know_a_killed_scheduler_the_later_counts() -> None:
    first, second = CountKeeper(), CountKeeper()
    killed, following = Scheduler(), Scheduler()
    record = killed.load("a", continues=True)
    for keeper, count in ((first, 4), (second, 5)):
        record.count = count
        killed.write("a")
        exchange(keeper, killed)
    # The second time it gives what nobody else has.
    for keeper in (first, first, second, second, first):
        exchange(keeper, following)
    assert shown(first.store, "a") == shown(second.store, "a") == 5
    assert not first.request().kept
    assert not second.request().kept


def test_a_model_that_is_unloaded_is_forgotten_by_all_that_show_it() -> None:
    keeper, first, second = CountKeeper(), Scheduler(), Scheduler()
    for scheduler in (first, second):
        scheduler.load("a", continues=True)
        scheduler.load("b", continues=True)
        exchange(keeper, first, second)
    second.source.store.end_loads([("a", "1")])
    exchange(keeper, first, second)
    assert {each.model for each in keeper.store.all()} == {"b"}
    # Loaded on demand: it counts from there.
    second.load("a", continues=True).count = 3
    second.write("a")
    exchange(keeper, first, second)
    assert shown(keeper.store, "a") == 3
    # Both between two looks.
    second.source.store.end_loads([("a", "1")])
    second.load("a", continues=True).count = 2
    second.write("a")
    exchange(keeper, first, second)
    assert shown(keeper.store, "a") == 2


def test_a_load_that_ends_because_the_next_one_is_known_takes_only_what_was_before_it() -> None:
    keeper, scheduler = CountKeeper(), Scheduler()
    scheduler.load("a", continues=True)
    exchange(keeper, scheduler)
    anew = pb.VersionCounts(id=next(_numbers), model="a", version="1", loaded_ns=next(_numbers))
    record = scheduler.load("a", continues=True)
    record.count = 7
    scheduler.write("a")
    exchange(keeper, scheduler)
    # Of a killed scheduler, from another gateway.
    scheduler.source.respond(pb.CountsRequest(kept=[anew]))
    exchange(keeper, scheduler)
    assert {each.id for each in keeper.store.all()} == {anew.id, record.id}


def test_records_that_become_part_of_a_sum_are_not_gone() -> None:
    keeper, scheduler = CountKeeper(), Scheduler()
    for count in range(40):
        scheduler.load("a", continues=True).count = 10
        scheduler.write("a")
        if count % 7 == 0:
            exchange(keeper, scheduler)
    exchange(keeper, scheduler)
    assert shown(keeper.store, "a") == 400
    assert len([*keeper.store.all()]) <= 8


class Mesh(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.schedulers = [Scheduler() for _ in range(_SCHEDULERS)]
        self.gateways = [CountKeeper() for _ in range(_GATEWAYS)]
        self.numbers = [*range(_GATEWAYS)]
        # The records of the load that is served.
        self.loads = {model: [self.schedulers[0].load(model, continues=True)] for model in _MODELS}
        self.last: dict[tuple[int, str], int] = {}

    def owner(self, model: str) -> Scheduler:
        return next(each for each in self.schedulers if model in each.serving)

    def take(self, model: str, scheduler: Scheduler) -> None:
        self.loads[model].append(scheduler.load(model, continues=True))

    def look(self, index: int) -> None:
        keeper = self.gateways[index]
        request, response = keeper.request(), pb.CountsResponse()
        for scheduler in self.schedulers:
            for model in scheduler.serving:
                scheduler.write(model)
            response.MergeFrom(scheduler.source.respond(request))
        keeper.update(response)
        for record in self.records():
            if not record.lost:
                record.reported[self.numbers[index]] = record.count

    def records(self) -> list[Record]:
        return [record for records in self.loads.values() for record in records]

    # ---- what happens

    @rule(model=st.sampled_from(_MODELS), count=st.integers(1, 5))
    def count(self, model: str, count: int) -> None:
        self.owner(model).serving[model].count += count

    @rule(scheduler=st.integers(0, _SCHEDULERS - 1), to=st.integers(0, _SCHEDULERS - 1))
    def kill(self, scheduler: int, to: int) -> None:
        killed = self.schedulers[scheduler]
        for model in killed.serving:
            for index, number in enumerate(self.numbers):
                if all(number not in each.reported for each in self.loads[model]):
                    # A load of which a gateway does not know is taken for the one before.
                    self.look(index)
        for record in self.records():
            record.lost |= record.home is killed
        self.schedulers[scheduler] = Scheduler()
        for model in killed.serving:
            self.take(model, self.schedulers[to])

    @rule(scheduler=st.integers(0, _SCHEDULERS - 1), to=st.integers(0, _SCHEDULERS - 1))
    def end(self, scheduler: int, to: int) -> None:
        ended = self.schedulers[scheduler]
        for model in ended.serving:
            ended.write(model)
        for number, keeper in zip(self.numbers, self.gateways, strict=True):
            keeper.add(ended.source.changed_after(0))
            for record in self.records():
                if record.home is ended and not record.lost:
                    record.reported[number] = record.count
        for record in self.records():
            record.lost |= record.home is ended
        self.schedulers[scheduler] = Scheduler()
        for model in ended.serving:
            self.take(model, self.schedulers[to])

    @rule(model=st.sampled_from(_MODELS), to=st.integers(0, _SCHEDULERS - 1))
    def move(self, model: str, to: int) -> None:
        owner = self.owner(model)
        if owner is not self.schedulers[to]:
            owner.write(model)
            del owner.serving[model]
            self.take(model, self.schedulers[to])

    @rule(model=st.sampled_from(_MODELS))
    def load_anew(self, model: str) -> None:
        owner = self.owner(model)
        owner.source.store.end_loads([(model, "1")])
        self.loads[model] = [owner.load(model, continues=False)]
        self.last = {key: count for key, count in self.last.items() if key[1] != model}

    @rule(gateway=st.integers(0, _GATEWAYS - 1))
    def restart(self, gateway: int) -> None:
        self.gateways[gateway] = CountKeeper()
        self.numbers[gateway] = next(_numbers)
        self.last = {key: count for key, count in self.last.items() if key[0] != gateway}

    # ---- what is shown

    @rule(gateway=st.integers(0, _GATEWAYS - 1))
    def show(self, gateway: int) -> None:
        self.look(gateway)
        number = self.numbers[gateway]
        for model, records in self.loads.items():
            found = shown(self.gateways[gateway].store, model)
            assert found >= self.last.get((gateway, model), 0)
            assert found <= sum(each.count for each in records)
            known = [each.reported[number] if each.lost else each.count for each in records]
            if self.last.get((gateway, model)) is not None:
                # It was there all the time.
                assert found >= sum(known)
            self.last[gateway, model] = found

    @rule()
    def agree(self) -> None:
        """What one gateway knows all know, once they have asked often enough."""
        for _ in range(3):
            for index in range(_GATEWAYS):
                self.look(index)
        for model in _MODELS:
            assert len({shown(each.store, model) for each in self.gateways}) == 1

    @invariant()
    def is_bounded(self) -> None:
        for keeper in self.gateways:
            assert len({each.model for each in keeper.store.all()}) <= len(_MODELS)


TestMesh = Mesh.TestCase
TestMesh.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
