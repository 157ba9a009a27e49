"""Which schedulers are live members of the mesh, and the epoch of that view.

A peer is a member from when it says that it has started until it says that it is leaving, or until
its last stream has ended. Of what it sends on several streams, which keep no order among each
other, the state with the largest number counts.
Pure: states and ends of streams in; members out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping


class Peer(NamedTuple):
    """What a scheduler says of itself (PeerState). epoch 0: it starts.

    models: that it has in service. compositions: ensembles with the models of their steps. All by
    qualified names. executors: how many have joined it; links: how many gateways and models use.
    number: grows with each state that the process sends.
    """

    name: str
    incarnation: int
    epoch: int = 0
    leaving: bool = False
    models: frozenset[str] = frozenset()
    compositions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    executors: int = 0
    links: int = 0
    number: int = 0

    @property
    def is_member(self) -> bool:
        return self.epoch > 0 and not self.leaving

    def is_newer(self, other: Peer) -> bool:
        """Whether the same process has sent it later; of another process that is not known."""
        return self.incarnation == other.incarnation and self.number > other.number


class Change(NamedTuple):
    """What an event has changed. peers: some member's models or compositions."""

    joined: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    peers: bool = False


class NameInUseError(Exception):
    """Another live scheduler has this one's name."""


class Membership:
    """The members as one scheduler sees them."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        # 0 until it has started.
        self.epoch = 0
        self.leaving = False
        self._largest_epoch = 0
        # By stream, in the order in which they were opened.
        self._states: dict[Hashable, Peer] = {}
        self._peers: dict[str, Peer] = {}
        self.members: frozenset[str] = frozenset()
        # By model: the member that has it.
        self._holders: dict[str, str] = {}
        # What members had when they were lost, until it is taken over.
        self._lost_models: dict[str, frozenset[str]] = {}

    # ---- events

    def start(self) -> Change:
        """The scheduler has started: it can own models."""
        self.epoch = self._largest_epoch = self._largest_epoch + 1
        return self._update()

    def leave(self) -> Change:
        """The scheduler is shutting down."""
        self.leaving = True
        return self._update()

    def on_state(self, stream: Hashable, peer: Peer) -> Change:
        """A peer, which may be this scheduler itself, has sent its state.

        Raises:
            NameInUseError: it is another process of the same name.
        """
        if peer.incarnation == self.incarnation:
            return Change()
        if peer.name == self.name:
            raise NameInUseError(peer.name)
        self._states[stream] = peer
        # Another of its streams may have brought a newer one, and may end before this one's does.
        newest = next((each for each in self._states.values() if each.is_newer(peer)), peer)
        for each, known in self._states.items():
            if newest.is_newer(known):
                self._states[each] = newest
        self._largest_epoch = max(self._largest_epoch, peer.epoch)
        return self._update()

    def on_stream_end(self, stream: Hashable) -> Change:
        """A stream has ended; nothing happens if no state had come."""
        if self._states.pop(stream, None) is None:
            return Change()
        return self._update()

    # ---- views

    @property
    def peers(self) -> Mapping[str, Peer]:
        """All other schedulers that are connected, by name."""
        return self._peers

    @property
    def is_member(self) -> bool:
        """Whether this scheduler can own models."""
        return self.epoch > 0 and not self.leaving

    @property
    def starting(self) -> bool:
        """Whether a connected peer has not started yet."""
        return any(peer.epoch == 0 for peer in self._peers.values())

    def is_equipped(self, executors: int, links: int) -> bool:
        """Whether no member has more executors, or more links."""
        members = [self._peers[name] for name in self.members if name in self._peers]
        return all(each.executors <= executors and each.links <= links for each in members)

    def is_connected(self, stream: Hashable) -> bool:
        """Whether the peer at the other end has sent its state."""
        return stream in self._states

    def stream_of(self, name: str, among: Iterable[Hashable]) -> Hashable | None:
        """One of these streams that leads to a peer."""
        matches = (each for each in among if each in self._states)
        return next((each for each in matches if self._states[each].name == name), None)

    def holder(self, model: str) -> str | None:
        """The other member that has a model; None: nobody."""
        return self._holders.get(model)

    @property
    def lost_models(self) -> Mapping[str, frozenset[str]]:
        """The models of members that were lost since the last take_lost_models(), by member."""
        return self._lost_models

    def leaving_models(self) -> frozenset[str]:
        """Those of lost_models that members had which said that they leave."""
        members = [name for name, peer in self._peers.items() if peer.leaving]
        return frozenset().union(*(self._lost_models.get(each, ()) for each in members))

    def take_lost_models(self) -> frozenset[str]:
        """The models of members that were lost since the last call."""
        models = frozenset().union(*self._lost_models.values())
        self._lost_models = {}
        return models

    # ---- inside

    def _update(self) -> Change:
        before, members = self._peers, self.members
        self._peers = {peer.name: peer for peer in self._states.values()}
        live = {name: peer for name, peer in self._peers.items() if peer.is_member}
        self.members = frozenset({self.name, *live} if self.is_member else live)
        left = members - self.members
        for name in left - {self.name}:
            # It may have been back, and lost again, before it had what it had at first.
            lost = self._lost_models.get(name, frozenset())
            self._lost_models[name] = lost | before[name].models
        if self.epoch and members and self.members != members:
            self.epoch = self._largest_epoch = max(self._largest_epoch, self.epoch) + 1
        self._holders = {}
        for peer in sorted(live.values(), key=lambda each: (each.epoch, each.name)):
            self._holders.update(dict.fromkeys(peer.models, peer.name))
        peers = {name: (peer.models, peer.compositions) for name, peer in live.items()}
        known = {
            name: (peer.models, peer.compositions)
            for name, peer in before.items()
            if peer.is_member
        }
        return Change(self.members - members, left, peers != known)
