"""Streams among schedulers: each scheduler dials one stream to each address, and accepts others."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nereid.comparison.shadow import parse_shadow
from nereid.core.methods import PEER_PATH
from nereid.core.traffic.messages import traffic_of, write_traffic
from nereid.core.traffic.rollout_plan import read_rollout
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import accept_link, dial_link
from nereid_scheduler.control.shards.members.membership import Peer
from nereid_scheduler.core.models.traffic_table import TrafficSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid.rpc import Call, Channel, Link


class PeerEvents(Protocol):
    """Receiver of the states that peers send."""

    def on_peer_state(self, stream: PeerStream, peer: Peer) -> None:
        """Handle a state that the scheduler at the other end has sent."""

    def on_peer_lost(self, stream: PeerStream) -> None:
        """Handle the end of a stream."""


class PeerStream:
    """One stream and its channel, which is `None` if the peer has dialled."""

    def __init__(self, address: str, channel: Channel | None = None) -> None:
        self.address = address
        self.channel = channel
        self.link: Link[pb.PeerState] | None = None
        # True while a scheduler, perhaps this one, is at the other end.
        self.connected = False

    def send(self, state: pb.PeerState) -> None:
        """Send a state, if the stream is open."""
        if self.link is not None:
            self.link.send(state)


class PeerLinks:
    """Holds all streams of one scheduler. Call `set_state` before anything else."""

    def __init__(self, open_channel: Callable[[str], Channel], events: PeerEvents) -> None:
        self._open_channel = open_channel
        self._events = events
        self._state = pb.PeerState()
        self._dialled: dict[str, PeerStream] = {}
        self._accepted: dict[PeerStream, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def dialled(self) -> Collection[PeerStream]:
        """Streams to all addresses, whether connected or not."""
        return self._dialled.values()

    @property
    def all_connected(self) -> bool:
        """Return whether there is a scheduler at every address."""
        return all(stream.connected for stream in self._dialled.values())

    def set_state(self, state: pb.PeerState) -> None:
        """Send a state to all peers now, and to peers that connect later."""
        self._state = state
        for stream in (*self._dialled.values(), *self._accepted):
            stream.send(state)

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Dial these addresses, and hang up on all others."""
        wanted = dict.fromkeys(addresses)
        for address in [dialled for dialled in self._dialled if dialled not in wanted]:
            self._hang_up(self._dialled.pop(address))
        for address in wanted:
            if address not in self._dialled:
                self._dialled[address] = self._dial(address)

    def accept(self, call: Call) -> None:
        """Accept a stream that a peer has opened, and send the peer this scheduler's state."""
        stream = PeerStream(call.peer)
        self._accepted[stream] = None

        def on_down() -> None:
            del self._accepted[stream]
            self._events.on_peer_lost(stream)

        stream.link = accept_link(
            call, _PeerCodec(), on_items=partial(self._on_states, stream), on_down=on_down
        )
        stream.send(self._state)

    async def close(self) -> None:
        """End all streams, once everything that was sent before has been written."""
        streams = [*self._dialled.values(), *self._accepted]
        self._dialled.clear()
        self._accepted.clear()
        for stream in streams:
            self._hang_up(stream)
        await asyncio.gather(*self._closing)

    def _dial(self, address: str) -> PeerStream:
        channel = self._open_channel(address)
        stream = PeerStream(address, channel)

        def on_up() -> None:
            stream.send(self._state)

        def on_down() -> None:
            stream.connected = False
            self._events.on_peer_lost(stream)

        on_states = partial(self._on_states, stream)
        stream.link = dial_link(
            channel, PEER_PATH, _PeerCodec(), on_items=on_states, on_up=on_up, on_down=on_down
        )
        return stream

    def _hang_up(self, stream: PeerStream) -> None:
        if stream.link is not None:
            stream.link.close()
        self._events.on_peer_lost(stream)
        if stream.channel is not None:
            task = asyncio.ensure_future(_close_channel(stream.channel, stream.link))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _on_states(self, stream: PeerStream, states: list[pb.PeerState]) -> None:
        stream.connected = True
        if states[-1].leaving and stream.link is not None:
            stream.link.expect_end()
        self._events.on_peer_state(stream, peer_of(states[-1]))


async def _close_channel(channel: Channel, link: Link[Any] | None) -> None:
    # The link sends its last state in this turn of the event loop: close the channel in the next.
    if link is not None:
        await link.drain()
    await asyncio.sleep(0)
    await channel.close()


class _PeerCodec:
    def size_bytes(self, item: pb.PeerState) -> int:  # noqa: ARG002 (a frame has one item)
        """Return 0, so that pending states share a frame. The frame holds the last state."""
        return 0

    def encode(self, items: list[pb.PeerState]) -> bytes:
        return items[-1].SerializeToString()

    def decode(self, frame: bytes) -> list[pb.PeerState]:
        return [pb.PeerState.FromString(frame)]


def peer_of(state: pb.PeerState) -> Peer:
    """Return the state in a message."""
    compositions = tuple(
        (composition.ensemble, tuple(composition.models)) for composition in state.compositions
    )
    return Peer(
        state.name,
        state.incarnation,
        state.epoch,
        state.leaving,
        frozenset(state.models),
        compositions,
        state.executors,
        state.links,
        state.number,
        tuple(sorted(state.takeovers.items())),
        tuple(map(_setting_of, state.traffic)),
    )


def state_of(peer: Peer) -> pb.PeerState:
    """Return the message of a state."""
    state = pb.PeerState(
        name=peer.name,
        incarnation=peer.incarnation,
        epoch=peer.epoch,
        leaving=peer.leaving,
        models=sorted(peer.models),
        executors=peer.executors,
        links=peer.links,
        number=peer.number,
        takeovers=dict(peer.takeovers),
    )
    for ensemble, models in peer.compositions:
        state.compositions.add(ensemble=ensemble, models=models)
    for model, setting in peer.traffic:
        message = state.traffic.add(model=model, set_ns=setting.set_ns)
        if setting.traffic is not None:
            write_traffic(setting.traffic, message.traffic)
        if setting.rollout is not None:
            message.rollout = json.dumps(setting.rollout.document())
        if setting.shadow is not None:
            message.shadow = setting.shadow.text()
    return state


def _setting_of(message: pb.TrafficSetting) -> tuple[str, TrafficSetting]:
    traffic = traffic_of(message.traffic) if message.HasField("traffic") else None
    rollout = read_rollout(json.loads(message.rollout)) if message.rollout else None
    shadow = parse_shadow(message.shadow) if message.shadow else None
    return message.model, TrafficSetting(traffic, message.set_ns, rollout, shadow)
