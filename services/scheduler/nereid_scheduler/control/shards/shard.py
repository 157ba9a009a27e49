"""One scheduler as a member of a mesh with several schedulers.

A scheduler that starts owns nothing until it knows its peers and has as many executors and gateways
as they have.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.wire.messages import Ownership
from nereid.rpc.net.scheduler_addresses import watch_addresses
from nereid_scheduler.control.shards.members.member_changes import Due, MemberChanges
from nereid_scheduler.control.shards.members.membership import NameInUseError, Peer
from nereid_scheduler.control.shards.peer_links import PeerLinks, PeerStream, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nereid.config.recovery import RecoveryTimes
    from nereid.rpc import Call, Channel
    from nereid.rpc.net.scheduler_addresses import AddressSpec
    from nereid_scheduler.control.shards.members.membership import Change, Membership
    from nereid_scheduler.control.shards.members.ownership import OwnedModels
    from nereid_scheduler.core.models.traffic_table import TrafficSetting

_log = logging.getLogger(__name__)

_START_POLL_S: Final = 0.01


class ShardModels(Protocol):
    """The models of a scheduler, which move when the members change."""

    def move_models(self, lost_models: frozenset[str], leaving: frozenset[str]) -> None:
        """Load what this scheduler owns now, and hand over the rest.

        lost_models: models of lost or leaving members. leaving: only those of leaving members.
        """

    def suspend(self) -> None:
        """Give all models up, as peers have served them meanwhile; hold their requests."""

    def resume(self) -> None:
        """Take the models that were given up over again, by their records."""

    def update_groups(self) -> bool:
        """Learn from all peers which models belong together; return whether owners may change."""

    def served(self) -> Peer:
        """Return this scheduler's models and compositions. The caller ignores the other fields."""

    def named(self) -> tuple[str, ...]:
        """Return the models whose requests this scheduler accepts, by their plain names."""

    def on_member_lost(self) -> None:
        """Prepare for requests of a lost member: clients may send them again to this scheduler."""

    def end_replaced_sequences(self) -> None:
        """End the sequences of this scheduler's models that a peer has as well.

        The peer considered this scheduler lost, so clients may have begun their sequences anew at
        the peer. A peer hands no instance over before its state has come, so this is early enough.
        """


class SharedTraffic(Protocol):
    """Traffic of all models as calls have set it. Each scheduler knows it."""

    def shared(self) -> tuple[tuple[str, TrafficSetting], ...]:
        """Return all settings, by the models' plain names."""

    def merge(self, settings: Mapping[str, TrafficSetting]) -> None:
        """Apply a peer's settings, unless later ones are known."""


class Shard:
    """A member of a mesh with several schedulers. Create it inside its event loop."""

    def __init__(  # noqa: PLR0913, PLR0917 (two by keyword)
        self,
        membership: Membership,
        owned: OwnedModels,
        models: ShardModels,
        traffic: SharedTraffic,
        addresses: Iterable[AddressSpec],
        open_channel: Callable[[str], Channel],
        send_notice: Callable[[Ownership], None],
        *,
        count_links: Callable[[], int] = lambda: 0,
        times: RecoveryTimes = DEFAULT_TIMES,
    ) -> None:
        self._count_links = count_links
        self.membership = membership
        self.owned = owned
        self.models = models
        self._traffic = traffic
        self.links = PeerLinks(open_channel, self)
        self._addresses = list(addresses)
        self._send_notice = send_notice
        self._times = times
        self._loop = asyncio.get_running_loop()
        self.changes = MemberChanges(times, self._loop.time())
        self._settling: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._sent_state: Peer | None = None
        self._states_sent = 0
        self._sent_notice: Ownership | None = None
        self._update_due = False

    async def start(self) -> None:
        """Find the peers; return once this scheduler owns models."""
        self._send_state()
        self._watching = asyncio.ensure_future(self._watch_addresses())
        self._on_beat()
        await self._wait_until(self._is_prepared)
        self.membership.start()
        self._send_state()
        # Other schedulers that start at about the same time may not have announced themselves yet.
        await self._wait_until(lambda: not self.membership.starting, self._times.settle_s)
        self.changes.start()
        self.owned.set_members(self.membership.members)
        self.membership.take_lost_models()
        others = ", ".join(sorted(self.owned.members - {self.membership.name})) or "none"
        _log.info("scheduler '%s' has started; other schedulers: %s", self.membership.name, others)

    def leave(self) -> bool:
        """Hand over all models to the other members; return False if there are no other members."""
        self.membership.leave()
        self.owned.set_members(self.membership.members)
        others = bool(self.membership.members)
        if others:
            self.models.move_models(frozenset(), frozenset())
        self.update()
        return others

    async def close(self) -> None:
        """Cancel all timers and end all streams."""
        for timer in (self._settling, self._beat):
            if timer is not None:
                timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self.changes.stop()
        await self.links.close()

    def accept_peer(self, call: Call) -> None:
        """Accept the stream of another scheduler."""
        self.links.accept(call)

    def channel_to(self, name: str) -> Channel | None:
        """Return a channel to a peer; `None` unless this scheduler has dialled a stream to it."""
        stream = self.membership.stream_of(name, self.links.dialled)
        return stream.channel if isinstance(stream, PeerStream) else None

    @property
    def name(self) -> str:
        """Name of this scheduler."""
        return self.membership.name

    @property
    def epoch(self) -> int:
        """Epoch of this scheduler's view of the members; 0 until the scheduler has started."""
        return self.membership.epoch

    def notice(self) -> Ownership:
        """Return the notice for a gateway that has connected."""
        membership = self.membership
        return Ownership(membership.name, membership.epoch, self.models.named(), membership.leaving)

    def regroup(self) -> None:
        """Move models, since the groups of models that belong together have changed."""
        if self.changes.started:
            self.models.move_models(frozenset(), frozenset())
            self.update()

    def models_changed(self) -> None:
        """Announce the changes of this scheduler's models in the next turn of the event loop."""
        if self.changes.started and not self._update_due:
            self._update_due = True
            self._loop.call_soon(self.update)

    def announce_again(self) -> None:
        """Announce this scheduler's models to gateways, whether or not they have changed.

        A gateway holds requests that came back until there is a new announcement.
        """
        self._sent_notice = None
        self.models_changed()

    def update(self) -> None:
        """Announce everything that has changed since the last announcement."""
        self._update_due = False
        # Send to gateways first: they must know the new owners before requests return to them.
        notice = self.notice()
        if notice != self._sent_notice:
            self._sent_notice = notice
            self._send_notice(notice)
        self._send_state()

    def _send_state(self) -> None:
        membership = self.membership
        peer = Peer(
            membership.name,
            membership.incarnation,
            membership.epoch,
            membership.leaving,
            traffic=self._traffic.shared(),
        )
        if self.changes.started:
            served = self.models.served()
            peer = peer._replace(
                models=served.models,
                compositions=served.compositions,
                executors=served.executors,
                links=self._count_links(),
                takeovers=membership.takeovers,
            )
        if peer != self._sent_state:
            self._sent_state = peer
            self._states_sent += 1
            self.links.set_state(state_of(peer._replace(number=self._states_sent)))

    def on_peer_state(self, stream: PeerStream, peer: Peer) -> None:
        """Store a peer's state, and act on the change."""
        try:
            change = self.membership.on_state(stream, peer)
        except NameInUseError:
            _log.error(
                "the scheduler at %s has this one's name, '%s'; it is ignored: give each"
                " scheduler its own --scheduler-name",
                stream.address,
                peer.name,
            )
            return
        # Before models move: their traffic must be known when their requests come.
        self._traffic.merge(dict(peer.traffic))
        self._on_change(change)

    def on_peer_lost(self, stream: PeerStream) -> None:
        """Forget the stream of a peer, and act on the change."""
        self._on_change(self.membership.on_stream_end(stream))

    def _on_change(self, change: Change) -> None:
        due = self.changes.on_change(change, self._loop.time(), self.models.update_groups)
        if self.changes.started:
            self._log_change(change)
            if change.peers:
                self.models.end_replaced_sequences()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self.changes.move_due_at_s is not None:
            self._settling = self._loop.call_at(self.changes.move_due_at_s, self._on_settled)
        self._act(due)

    def _on_settled(self) -> None:
        self._settling = None
        self._act(self.changes.on_settled())

    def _act(self, due: Due) -> None:
        if due in {Due.MOVE, Due.TAKE_OVER}:
            self._apply(lost=due is Due.TAKE_OVER)
        elif due is Due.GIVE_UP:
            self.models.suspend()
        elif due is Due.REGROUP:
            self.regroup()
        elif due is Due.ANNOUNCE:
            self.models_changed()

    def _log_change(self, change: Change) -> None:
        for name in sorted(change.joined):
            _log.info("scheduler '%s' has joined (epoch %d)", name, self.epoch)
        for name in sorted(change.left):
            peer = self.membership.peers.get(name)
            if peer is not None and peer.leaving:
                _log.info("scheduler '%s' is leaving (epoch %d)", name, self.epoch)
            else:
                _log.warning("scheduler '%s' was lost (epoch %d)", name, self.epoch)

    def _apply(self, *, lost: bool = False) -> None:
        lost_members = self.owned.members - self.membership.members
        self.owned.set_members(self.membership.members)
        self.membership.record_takeovers(lost_members)
        if lost or lost_members:
            self.models.on_member_lost()
        leaving = self.membership.leaving_models()
        self.models.move_models(self.membership.take_lost_models(), leaving)
        self.models.resume()
        self.update()

    def _is_prepared(self) -> bool:
        connected = bool(self.links.dialled) and self.links.all_connected
        if not connected:
            return False
        executors = self.models.served().executors
        return self.membership.is_equipped(executors, self._count_links())

    async def _watch_addresses(self) -> None:
        async for addresses in watch_addresses(self._addresses):
            self.links.set_addresses(addresses)

    async def _wait_until(self, condition: Callable[[], bool], limit_s: float = 0.0) -> None:
        try:
            async with asyncio.timeout(limit_s or self._times.start_wait_s):
                while not condition():  # noqa: ASYNC110 - nothing reports executors and links
                    await asyncio.sleep(_START_POLL_S)
        except TimeoutError:
            pass

    def _on_beat(self) -> None:
        again_s = self.changes.on_beat(self._loop.time())
        if self.changes.started:
            self._send_state()
        self._beat = self._loop.call_at(again_s, self._on_beat)
