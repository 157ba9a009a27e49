"""When a scheduler acts on a change of the members, with streams that the test plays."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from nereid.config.recovery import RecoveryTimes
from nereid.core.traffic.weights import make_traffic
from nereid.core.wire.messages import Ownership
from nereid.rpc import Handlers
from nereid.rpc.net.scheduler_addresses import AddressSpec
from nereid_scheduler.control.shards.members.membership import Membership, Peer
from nereid_scheduler.control.shards.members.ownership import OwnedModels
from nereid_scheduler.control.shards.peer_links import PeerStream, peer_of, state_of
from nereid_scheduler.control.shards.shard import Shard
from nereid_scheduler.core.models.traffic_table import TrafficSetting
from tests.support.rpc.local_channel import LocalChannel
from tests.support.waiting import until

SOON_S = 0.02
LIMIT_S = 10


SLOW = RecoveryTimes(silence_s=600.0)


class Models:
    """Keeps what the shard asks for."""

    def __init__(self) -> None:
        self.moves: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self.lost = self.replaced = 0
        self.suspended: list[bool] = []
        self.leaving: frozenset[str] = frozenset()
        self.regrouped = False
        self.executors = 0
        self.names: tuple[str, ...] = ()

    def move_models(self, lost_models: frozenset[str], leaving: frozenset[str]) -> None:
        assert leaving <= lost_models
        self.leaving = leaving
        self.moves.put_nowait(lost_models)

    def suspend(self) -> None:
        self.suspended.append(True)

    def resume(self) -> None:
        self.suspended.append(False)

    def update_groups(self) -> bool:
        return self.regrouped

    def served(self) -> Peer:
        return Peer("", 0, models=frozenset(self.names), executors=self.executors)

    def named(self) -> tuple[str, ...]:
        return self.names

    def on_member_lost(self) -> None:
        self.lost += 1

    def end_replaced_sequences(self) -> None:
        self.replaced += 1

    async def moved(self) -> frozenset[str]:
        return await asyncio.wait_for(self.moves.get(), LIMIT_S)


class Traffic:
    """Settings that calls have made here, and those that came from peers."""

    def __init__(self) -> None:
        self.own: tuple[tuple[str, TrafficSetting], ...] = ()
        self.merged: dict[str, TrafficSetting] = {}

    def shared(self) -> tuple[tuple[str, TrafficSetting], ...]:
        return self.own

    def merge(self, settings: Mapping[str, TrafficSetting]) -> None:
        self.merged |= settings


class QuickTimes(RecoveryTimes):
    """Little is waited for; yet a loop that is late for a moment did not stand still."""

    @property
    def start_wait_s(self) -> float:
        return SOON_S

    @property
    def settle_s(self) -> float:
        return SOON_S


QUICK = QuickTimes(60.0)


class World:
    """One shard, named a, and addresses where nobody is."""

    def __init__(self, *addresses: str, times: RecoveryTimes = QUICK) -> None:
        self.models = Models()
        self.traffic = Traffic()
        self.notices: list[Ownership] = []
        self.shard = Shard(
            Membership("a", 1),
            OwnedModels("a"),
            self.models,
            self.traffic,
            map(AddressSpec, addresses),
            lambda _: LocalChannel(Handlers()),
            self.notices.append,
            times=times,
        )
        self.stream = PeerStream("there")

    def peer(self, **fields: object) -> None:
        peer = Peer("b", 2, **({"epoch": 1} | fields))  # type: ignore[arg-type]
        self.shard.on_peer_state(self.stream, peer)

    def lose_peer(self) -> None:
        self.shard.on_peer_lost(self.stream)


@pytest.fixture
async def it() -> AsyncIterator[World]:
    """It has started."""
    made = World()
    await made.shard.start()
    yield made
    await made.shard.close()


async def test_who_joins_gets_models_after_a_while_and_who_is_lost_loses_them_at_once(
    it: World,
) -> None:
    assert it.shard.owned.members == {"a"}
    it.peer(models=frozenset({"m"}))
    assert it.shard.owned.members == {"a"}
    assert it.models.moves.empty()
    assert await it.models.moved() == set()
    assert it.shard.owned.members == {"a", "b"}
    assert it.models.lost == 0
    it.lose_peer()
    assert it.shard.owned.members == {"a"}
    assert it.models.moves.get_nowait() == {"m"}
    assert (it.models.lost, it.models.leaving) == (1, frozenset())
    assert [each.epoch for each in it.notices] == sorted({each.epoch for each in it.notices})


async def test_a_start_waits_for_peers_that_start_and_for_executors() -> None:
    it = World("there", times=SLOW)
    it.models.executors = 1
    starting = asyncio.ensure_future(it.shard.start())
    await until(lambda: it.shard.links.dialled)
    assert not starting.done()
    (it.stream,) = it.shard.links.dialled
    it.stream.connected = True
    it.peer(epoch=0)
    await until(lambda: it.shard.epoch)
    assert not starting.done()
    # It works for two executors, but that counts only from now on.
    it.peer(executors=2)
    await asyncio.wait_for(starting, LIMIT_S)
    assert it.shard.owned.members == {"a", "b"}
    await it.shard.close()


async def test_a_start_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    it = World()
    it.peer(executors=2)
    with caplog.at_level(logging.INFO):
        await asyncio.wait_for(it.shard.start(), LIMIT_S)
    assert "scheduler 'a' has started; other schedulers: b" in caplog.text
    assert it.shard.owned.members == {"a", "b"}
    await it.shard.close()


async def test_who_leaves_gives_its_models_away_if_there_is_somebody_else() -> None:
    it = World()
    await it.shard.start()
    assert not it.shard.leave()
    assert it.models.moves.empty()
    assert it.notices[-1].leaving
    await it.shard.close()
    it = World()
    it.peer()
    await it.shard.start()
    assert it.shard.leave()
    assert it.models.moves.get_nowait() == set()
    assert it.shard.owned.members == {"b"}
    await it.shard.close()


async def test_another_process_of_the_same_name_is_reported(
    it: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    it.shard.on_peer_state(it.stream, Peer("a", 2, epoch=1))
    assert "the scheduler at there has this one's name, 'a'; it is ignored" in caplog.text
    assert it.shard.owned.members == {"a"}


async def test_changes_of_one_turn_are_announced_together(it: World) -> None:
    it.shard.update()
    count = len(it.notices)
    it.models.names = ("m",)
    it.shard.models_changed()
    it.shard.models_changed()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [each.models for each in it.notices[count:]] == [("m",)]


async def test_models_move_when_they_belong_together_otherwise() -> None:
    it = World()
    it.peer()
    await it.shard.start()
    it.peer(models=frozenset({"m"}))
    assert it.models.moves.empty()
    it.models.regrouped = True
    it.peer(models=frozenset({"m", "n"}))
    assert it.models.moves.get_nowait() == set()
    await it.shard.close()


async def test_sequences_are_over_as_soon_as_a_peer_names_their_models(it: World) -> None:
    it.peer()
    count = it.models.replaced
    it.peer(executors=2)
    assert it.models.replaced == count
    it.peer(models=frozenset({"m"}))
    assert it.models.replaced == count + 1
    it.lose_peer()
    count = it.models.replaced
    # One that took the models over while this scheduler stood still joins with them.
    it.peer(models=frozenset({"m"}))
    assert it.models.replaced == count + 1


async def test_a_scheduler_that_stood_still_takes_no_models_before_it_sees_its_peers() -> None:
    it = World(times=SLOW)
    it.peer(models=frozenset({"m"}))
    it.shard.changes.start()
    it.shard.membership.start()
    it.shard.owned.set_members(it.shard.membership.members)
    it.shard.changes._last_beat_s = time.monotonic() - 300
    it.shard._on_beat()
    it.lose_peer()
    assert it.shard.owned.members == {"a", "b"}
    assert it.models.moves.empty()
    # Nor does it go on with its own: the peer has had them.
    assert it.models.suspended == [True]
    await it.shard.close()


async def test_models_that_a_peer_has_taken_over_are_given_up_until_the_members_are_settled(
    it: World,
) -> None:
    it.peer()
    await it.models.moved()
    it.models.suspended.clear()
    it.peer(takeovers=((1, 3),))
    assert it.models.suspended == [True]
    await it.models.moved()
    assert it.models.suspended == [True, False]
    # It says so in each of its states.
    it.peer(takeovers=((1, 3),), executors=2)
    assert it.models.suspended == [True, False]


async def test_states_say_whose_models_were_taken_over(it: World) -> None:
    it.peer()
    await it.models.moved()
    it.lose_peer()
    assert it.shard._sent_state is not None
    assert it.shard._sent_state.takeovers == ((2, it.shard.epoch),)


async def test_models_are_announced_again_for_requests_that_came_back(it: World) -> None:
    it.shard.update()
    count = len(it.notices)
    it.shard.models_changed()
    it.shard.announce_again()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(it.notices) == count + 1


async def test_traffic_that_calls_have_set_travels_before_models_move(it: World) -> None:
    set_there = TrafficSetting(make_traffic({1: 9, 2: 1}, "principal"), 7)
    cleared_here = TrafficSetting(None, 5)
    it.traffic.own = (("m", cleared_here),)
    it.peer(models=frozenset({"m"}), traffic=(("m", set_there),))
    assert it.traffic.merged == {"m": set_there}
    assert it.models.moves.empty()
    sent = Peer("a", 1, traffic=(("m", cleared_here), ("n", set_there)))
    assert peer_of(state_of(sent)) == sent
