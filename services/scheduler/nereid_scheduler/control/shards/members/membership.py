"""Tracks which schedulers are live members of the mesh, and the epoch of that view.

    state of a peer   event                                          next state
    unknown           it sends a state with epoch 0                  starting
    unknown           it sends a state with an epoch                 member
    starting          it sends a state with an epoch                 member
    any               it sends a state that says that it leaves      leaving
    any               its last stream ends                           unknown; if it was a member,
                                                                     it is lost

States on different streams may arrive in any order, so of all states that a peer has sent, the one
with the largest number counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from nereid_scheduler.core.models.traffic_table import TrafficSetting


class Peer(NamedTuple):
    """The state that a scheduler announces (PeerState). All model names are qualified."""

    name: str
    incarnation: int
    # 0 until the scheduler has started.
    epoch: int = 0
    leaving: bool = False
    models: frozenset[str] = frozenset()
    compositions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    executors: int = 0
    links: int = 0
    # Grows with each state that the process sends.
    number: int = 0
    # Incarnations of the lost schedulers whose models it has taken over, and its epoch since.
    takeovers: tuple[tuple[int, int], ...] = ()
    # Traffic of models as calls have set it, by the models' plain names.
    traffic: tuple[tuple[str, TrafficSetting], ...] = ()

    @property
    def is_member(self) -> bool:
        """Return whether the scheduler has started and is not leaving."""
        return self.epoch > 0 and not self.leaving

    def is_newer(self, other: Peer) -> bool:
        """Return whether the same process sent this state later; False for another process."""
        return self.incarnation == other.incarnation and self.number > other.number


class Change(NamedTuple):
    """Changes of an event. `peers`: True if the models of some member have changed.

    replaced: True if a peer says for the first time that it has taken this scheduler's models over.
    """

    joined: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    peers: bool = False
    replaced: bool = False


class NameInUseError(Exception):
    """Another live scheduler has the name of this scheduler."""


class Membership:
    """Keeps the members as one scheduler sees them."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        # 0 until this scheduler has started.
        self.epoch = 0
        self.leaving = False
        self._largest_epoch = 0
        # Key: a stream, in the order in which streams were opened.
        self._states: dict[Hashable, Peer] = {}
        self._peers: dict[str, Peer] = {}
        self.members: frozenset[str] = frozenset()
        self._holders: dict[str, str] = {}
        # Key: a lost member. Value: the models that it had, until they are taken over.
        self._lost_models: dict[str, frozenset[str]] = {}
        # Key: the name of any peer that there was.
        self._incarnations: dict[str, int] = {}
        # Key: a member whose models this one has taken over. Value: its incarnation, our epoch.
        self._takeovers: dict[str, tuple[int, int]] = {}
        # Key: a peer that has taken this scheduler's models over. Value: its epoch then.
        self._replaced: dict[str, int] = {}

    def start(self) -> Change:
        """Become a member, since the scheduler has started and can own models."""
        self.epoch = self._largest_epoch = self._largest_epoch + 1
        return self._update()

    def leave(self) -> Change:
        """Stop being a member, since the scheduler is shutting down."""
        self.leaving = True
        return self._update()

    def on_state(self, stream: Hashable, peer: Peer) -> Change:
        """Store a peer's state; raise NameInUseError if another process has the same name."""
        if peer.incarnation == self.incarnation:
            return Change()
        if peer.name == self.name:
            raise NameInUseError(peer.name)
        self._states[stream] = peer
        # Another stream may have brought a newer state, and may end before this one.
        newest = next((known for known in self._states.values() if known.is_newer(peer)), peer)
        for other, known in self._states.items():
            if newest.is_newer(known):
                self._states[other] = newest
        self._largest_epoch = max(self._largest_epoch, peer.epoch)
        return self._update()._replace(replaced=self._is_replaced(peer))

    def on_stream_end(self, stream: Hashable) -> Change:
        """Forget a stream that has ended, if a state has been received on it."""
        if self._states.pop(stream, None) is None:
            return Change()
        return self._update()

    def _is_replaced(self, peer: Peer) -> bool:
        epoch = dict(peer.takeovers).get(self.incarnation, 0)
        if epoch <= self._replaced.get(peer.name, 0):
            return False
        self._replaced[peer.name] = epoch
        return True

    def record_takeovers(self, members: Iterable[str]) -> None:
        """Record that lost members' models belong to others now: the members may come back."""
        for name in members:
            self._takeovers[name] = self._incarnations[name], self.epoch

    @property
    def takeovers(self) -> tuple[tuple[int, int], ...]:
        """Takeovers to announce: incarnations of lost members, and this scheduler's epochs."""
        return tuple(self._takeovers.values())

    @property
    def peers(self) -> Mapping[str, Peer]:
        """All other schedulers that are connected, by name."""
        return self._peers

    @property
    def is_member(self) -> bool:
        """True if this scheduler can own models."""
        return self.epoch > 0 and not self.leaving

    @property
    def starting(self) -> bool:
        """True if a connected peer has not started yet."""
        return any(peer.epoch == 0 for peer in self._peers.values())

    def is_equipped(self, executors: int, links: int) -> bool:
        """Return whether no member has more executors, or more links, than these numbers."""
        members = [self._peers[name] for name in self.members if name in self._peers]
        return all(peer.executors <= executors and peer.links <= links for peer in members)

    def is_connected(self, stream: Hashable) -> bool:
        """Return whether a state has been received on a stream."""
        return stream in self._states

    def stream_of(self, name: str, among: Iterable[Hashable]) -> Hashable | None:
        """Return one of the streams in `among` that leads to the peer of this name."""
        matches = (stream for stream in among if stream in self._states)
        return next((stream for stream in matches if self._states[stream].name == name), None)

    def holder(self, model: str) -> str | None:
        """Return another member that has a model, or `None`."""
        return self._holders.get(model)

    @property
    def lost_models(self) -> Mapping[str, frozenset[str]]:
        """Maps a member that was lost since the last `take_lost_models()` to its models."""
        return self._lost_models

    def leaving_models(self) -> frozenset[str]:
        """Return the part of `lost_models` that belonged to members that are leaving."""
        members = [name for name, peer in self._peers.items() if peer.leaving]
        return frozenset().union(*(self._lost_models.get(name, ()) for name in members))

    def take_lost_models(self) -> frozenset[str]:
        """Return the models of members that were lost since the last call, and forget them."""
        models = frozenset().union(*self._lost_models.values())
        self._lost_models = {}
        return models

    def _update(self) -> Change:
        before, members = self._peers, self.members
        self._peers = {peer.name: peer for peer in self._states.values()}
        self._incarnations.update((peer.name, peer.incarnation) for peer in self._peers.values())
        live = {name: peer for name, peer in self._peers.items() if peer.is_member}
        self.members = frozenset({self.name, *live} if self.is_member else live)
        left = members - self.members
        for name in left - {self.name}:
            # The member may have come back and been lost again before it had all its old models.
            lost = self._lost_models.get(name, frozenset())
            self._lost_models[name] = lost | before[name].models
        if self.epoch and members and self.members != members:
            self.epoch = self._largest_epoch = max(self._largest_epoch, self.epoch) + 1
        self._holders = {}
        for peer in sorted(live.values(), key=lambda member: (member.epoch, member.name)):
            self._holders.update(dict.fromkeys(peer.models, peer.name))
        peers = {name: (peer.models, peer.compositions) for name, peer in live.items()}
        known = {
            name: (peer.models, peer.compositions)
            for name, peer in before.items()
            if peer.is_member
        }
        return Change(self.members - members, left, peers != known)
