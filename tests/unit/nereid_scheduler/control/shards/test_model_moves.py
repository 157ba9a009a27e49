"""Whose a model is, and which loads and hand-overs follow from that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nereid.config.recovery import RecoveryTimes
from nereid.core.errors import InvalidArgument
from nereid_scheduler.control.shards.members.membership import Membership, Peer
from nereid_scheduler.control.shards.members.ownership import OwnedModels, owner_of
from nereid_scheduler.control.shards.model_moves import ModelMoves
from nereid_scheduler.control.state.model_records import NO_MODEL_RECORDS, ModelRecords
from nereid_scheduler.control.state.recorder import StateRecorder
from nereid_scheduler.core.models.desired_models import DesiredModels, Reason
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.core.models.overrides import Override
from nereid_scheduler.placement.models.catalogue import Catalogue
from tests.support.scheduler.state_store import MemoryStateStore
from tests.support.scheduler.world import found, serve
from tests.support.waiting import until

NAMES = [f"m{each}" for each in range(8)]
MINE, OTHERS = (
    [name for name in NAMES if (owner_of(name, "ab") == "a") is mine] for mine in (True, False)
)
QUICK = RecoveryTimes(silence_s=0.0, restart_s=0.0)


class Repositories:
    namespacing = False

    def __init__(self) -> None:
        self.models = {each: found(each) for each in NAMES}

    def scan(self) -> list[FoundModel]:
        return [*self.models.values()]

    def find(self, name: str, _: Override | None = None) -> FoundModel | None:
        return self.models.get(name)

    def plain_name(self, name: str) -> str:
        return name

    def qualified_names(self, name: str, _: Override | None = None) -> list[str]:
        return [name]


class World:
    """Scheduler a, of a and b."""

    def __init__(
        self,
        mode: str = "none",
        times: RecoveryTimes = QUICK,
        records: ModelRecords = NO_MODEL_RECORDS,
    ) -> None:
        self.desired = DesiredModels()
        self.catalogue = Catalogue(desired=self.desired)
        self.repositories = Repositories()
        self.membership = Membership("a", 1)
        self.membership.start()
        self.owned = OwnedModels("a")
        self.owned.set_members(frozenset("ab"))
        self.regrouped = self.takeovers = 0
        loader = SimpleNamespace(sessions=["executor"], begin_takeover=self._begin_takeover)
        self.moves = ModelMoves(
            self.owned,
            self.membership,
            cast("Any", self.repositories),
            self.catalogue,
            mode,
            cast("Any", loader),
            self.desired,
            self._on_regrouped,
            times,
            records,
        )
        self.state("b")

    def _on_regrouped(self) -> None:
        self.regrouped += 1

    def _begin_takeover(self, _: object) -> None:
        self.takeovers += 1

    def state(self, name: str, *models: str, number: int = 1) -> None:
        """What another scheduler says of itself."""
        peer = Peer(name, 7, epoch=1, models=frozenset(models), number=number)
        self.membership.on_state(name, peer)

    def serve(self, *names: str) -> None:
        for name in names:
            serve(self.catalogue, name, draft=self.repositories.models[name].draft)

    def due(self, reason: Reason) -> list[str]:
        """What has been asked for, for this reason."""
        due = [each for each in self.desired.take_due() if not each.superseded]
        return sorted(each.name for each in due if each.reason is reason)


async def test_each_scheduler_loads_its_own_models() -> None:
    it = World()
    await it.moves.scan()
    selected = it.moves.select(it.repositories.scan())
    assert [each.name for each in selected] == MINE
    assert not it.moves.all_expected_served()
    it.serve(*MINE)
    it.state("b", *OTHERS, number=2)
    assert it.moves.all_expected_served()
    assert it.moves.served().models == frozenset(MINE)
    assert it.moves.named() == tuple(MINE)


async def test_models_of_other_owners_are_given_away_and_its_own_are_taken_over() -> None:
    it = World()
    await it.moves.scan()
    it.serve(OTHERS[0], MINE[0])
    it.moves.move_models(frozenset(), frozenset())
    due = it.desired.take_due()
    assert [each.name for each in due if each.reason is Reason.MOVED] == [OTHERS[0]]
    assert sorted(each.name for each in due if each.reason is Reason.TAKEN_OVER) == MINE[1:]
    assert {each.name: each.found is None for each in due if each.reason is Reason.TAKEN_OVER} == (
        dict.fromkeys(MINE[1:], False)
    )
    # Its requests wait for a moment.
    assert OTHERS[0] in it.desired.moving
    await until(lambda: not it.desired.moving)


async def test_in_explicit_mode_only_what_members_had_is_taken_over() -> None:
    it = World("explicit")
    lost = frozenset({MINE[0], OTHERS[0]})
    it.desired.add(OTHERS[1], Reason.TAKEN_OVER, awaited_as=OTHERS[1])
    it.moves.move_models(lost, frozenset())
    assert MINE[0] in it.desired.awaited
    assert OTHERS[1] not in it.desired.awaited
    # Its owner has not named it yet; nobody may do so, if it was unloaded.
    assert it.moves.has_moved(OTHERS[0])
    await until(lambda: not it.moves.has_moved(OTHERS[0]))
    it.moves.move_models(lost, frozenset())
    assert it.due(Reason.TAKEN_OVER) == [MINE[0]]


async def test_models_that_a_peer_has_served_are_given_up_and_taken_over_by_their_records() -> None:
    it = World("explicit", records=ModelRecords(StateRecorder(MemoryStateStore())))
    mine, other = MINE[0], OTHERS[0]
    it.serve(mine, other)
    it.moves.suspend()
    due = it.desired.take_due()
    assert [(each.name, each.reason) for each in due] == [
        (mine, Reason.MOVED),
        (mine, Reason.TAKEN_OVER),
    ]
    # Its requests are held here meanwhile.
    assert it.desired.awaited == {mine: mine}
    assert it.desired.suspended
    # More than one peer may have served them.
    it.moves.suspend()
    assert it.due(Reason.TAKEN_OVER) == []
    it.moves.resume()
    assert it.due(Reason.TAKEN_OVER) == [mine]
    assert not it.desired.suspended
    it.moves.resume()
    assert it.due(Reason.TAKEN_OVER) == []


@pytest.mark.parametrize("returns", [False, True])
async def test_a_load_before_the_records_are_read_again_replaces_what_the_last_owner_wrote(
    *, returns: bool
) -> None:
    store, name = MemoryStateStore(), MINE[0]
    recorder, other = StateRecorder(store), StateRecorder(store)
    await recorder.read()
    await other.read()
    records = ModelRecords(recorder)
    it = World("explicit", records=records)
    await ModelRecords(other).record_load(name, None, by_name=True)
    if returns:
        it.serve(name)
        it.moves.suspend()
    else:
        it.moves.move_models(frozenset({name}), frozenset())
    await records.record_load(name, Override('{"max_batch_size": 7}'), by_name=True)
    assert recorder.failures == 0
    (record,) = records.parse(await other.read()).values()
    assert record.config == '{"max_batch_size": 7}'
    await recorder.close()
    await other.close()


async def test_without_records_a_scheduler_keeps_the_models_that_a_peer_has_served() -> None:
    it = World("explicit")
    it.serve(MINE[0])
    it.moves.suspend()
    assert it.desired.take_due() == []


async def test_where_a_model_is() -> None:
    it = World("explicit")
    mine, other = MINE[0], OTHERS[0]
    assert (it.moves.location(mine), it.moves.location(other)) == ("a", "b")
    assert not it.moves.has_moved(mine)
    # Another one that still has a model is called about it, unless this one owns it.
    it.state("c", other)
    assert it.moves.location(other) == "c"
    it.state("b", mine, number=2)
    assert (it.moves.location(mine), it.moves.is_elsewhere(mine)) == ("a", True)
    assert it.moves.has_moved(mine)
    it.serve(mine)
    assert it.moves.location(mine) == "a"
    assert not it.moves.has_moved(mine)


async def test_an_ensemble_and_the_models_of_its_steps_have_one_owner() -> None:
    it = World("explicit")
    it.repositories.models["e"] = found("e", MINE[0], OTHERS[0])
    await it.moves.learn_model("e", None)
    assert it.regrouped == 1
    members = {it.moves.owner(each) for each in ("e", MINE[0], OTHERS[0])}
    assert len(members) == 1


async def test_peers_know_what_a_load_composes_while_it_lasts() -> None:
    it = World("explicit")
    config = '{"platform": "ensemble", "ensemble_scheduling": {"step": [{"model_name": "m0"}]}}'
    await it.moves.learn_model("new", Override(config))
    with it.moves.loading("new"):
        assert ("new", ("m0",)) in it.moves.served().compositions
    assert it.moves.served().compositions == ()
    with pytest.raises(InvalidArgument):
        await it.moves.learn_model("new", Override("not JSON"))


async def test_the_sequences_of_a_model_that_a_peer_has_as_well_are_over() -> None:
    it = World()
    ended: list[str] = []

    class Pool:
        def __init__(self, name: str) -> None:
            self.name = name

        def end_sequences(self, cause: str) -> None:
            ended.append(f"{self.name}: {cause}")

    for name in (*MINE[:2], OTHERS[0]):
        runtime = SimpleNamespace(calls_other_models=False, pool=Pool(name))
        serve(it.catalogue, name, runtime=runtime)
    it.moves.end_replaced_sequences()
    assert ended == []
    # Those of a model that is being handed over end with it.
    it.state("b", MINE[0], OTHERS[0], number=2)
    it.moves.end_replaced_sequences()
    assert ended == [f"{MINE[0]}: scheduler 'b' has served the model meanwhile"]


async def test_a_lost_members_requests_may_come() -> None:
    it = World()
    it.moves.on_member_lost()
    assert it.takeovers == 1
