"""The decision which server answers a call, and whether the other one gets a copy of it.

By weight and by percentage, but for all requests of a sequence alike.
"""

# layout: compiled

from __future__ import annotations

import random
import zlib
from collections import OrderedDict
from enum import IntEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WEIGHT: Final = 100
_MAX_SEQUENCES: Final = 100_000
_HASH_BYTES: Final = 4
_HASH_RANGE: Final = 1 << 32


class Side(IntEnum):
    """One of the two servers."""

    OLD = 0
    NEW = 1

    @property
    def other(self) -> Side:
        """The other server."""
        return Side.NEW if self is Side.OLD else Side.OLD


class SequenceStep(NamedTuple):
    """One request of a sequence."""

    model: str
    sequence_id: str
    start: bool
    end: bool

    @property
    def key(self) -> tuple[str, str]:
        """The sequence's identity."""
        return self.model, self.sequence_id


class Traffic:
    """Weight of the new server, from 0 to 100, and the servers of open sequences.

    copied_percent: the part of the inferences whose copies go to the other server. draw: returns
    random numbers from 0 to 1, without 1. has_copies: returns whether copies of sequences with a
    key are on their way.
    """

    def __init__(
        self,
        draw: Callable[[], float] = random.random,
        has_copies: Callable[[tuple[str, str]], bool] | None = None,
    ) -> None:
        self.weight = 0
        self.copied_percent = 100.0
        self._draw = draw
        self._has_copies = has_copies
        # In the order of their last request, so that the oldest is forgotten first.
        self._sequences: OrderedDict[tuple[str, str], Side] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str], Side] = OrderedDict()
        # The last START, if it stays at the former server of its id.
        self._kept: SequenceStep | None = None

    @property
    def open_sequences(self) -> tuple[tuple[str, str], ...]:
        """Keys of the sequences that have started here and not ended."""
        return tuple(self._sequences)

    def side_of_other_calls(self) -> Side:
        """Return who answers calls that are no inference: the old server until the last turn."""
        return Side.NEW if self.weight == MAX_WEIGHT else Side.OLD

    def is_copied(self, step: SequenceStep | None) -> bool:
        """Return whether an inference is to be copied: by chance, or by its sequence's key.

        Without a copy of each request before it, the copy of a sequence's request means nothing.
        """
        if step is None:
            return self._draw() * 100 < self.copied_percent
        return zlib.crc32(_id_of(step)) / _HASH_RANGE * 100 < self.copied_percent

    def is_kept(self, step: SequenceStep) -> bool:
        """Return whether the last START stays at the former server of its id.

        The weight gives it to the other one, but copies of the id's earlier sequence are on their
        way there, and would be taken for its requests. It is not copied, so that they come to an
        end.
        """
        return step is self._kept

    def draw_connection(self) -> float:
        """Return a connection's number, which decides about all its streams."""
        return self._draw() * MAX_WEIGHT

    def side_of_request(self, step: SequenceStep | None) -> Side:
        """Return who answers a request, by chance unless it belongs to an open sequence."""
        return self._side(step, self._draw() * MAX_WEIGHT)

    def side_of_stream(self, step: SequenceStep | None, connection_draw: float) -> Side:
        """Return who answers a stream whose first request may belong to a sequence."""
        return self._side(step, connection_draw)

    def _side(self, step: SequenceStep | None, draw: float) -> Side:
        by_weight = Side.NEW if draw < self.weight else Side.OLD
        if step is None:
            return by_weight
        # A sequence that is not known began before the proxy, at the old server.
        side = self._side_of_start(step) if step.start else self._sequences.get(step.key, Side.OLD)
        self.note_step(step, side)
        return side

    def _side_of_start(self, step: SequenceStep) -> Side:
        # The id decides, so that its sequences stay at one server as long as the weight does, and
        # do not meet each other's copies. By another hash than is_copied(): of both servers'
        # sequences, a part is copied.
        key = step.key
        self._kept = None
        digest = blake2b(_id_of(step), digest_size=_HASH_BYTES).digest()
        number = int.from_bytes(digest, "big") / _HASH_RANGE
        side = Side.NEW if number * MAX_WEIGHT < self.weight else Side.OLD
        last = self._sequences.get(key, self._ended.get(key, side))
        if last is not side and self._has_copies is not None and self._has_copies(key):
            self._kept = step
            return last
        return side

    def note_step(self, step: SequenceStep, side: Side) -> None:
        """Remember where a sequence is served, until it ends."""
        key = step.key
        if step.end:
            self._sequences.pop(key, None)
            self._ended[key] = side
            self._ended.move_to_end(key)
            if len(self._ended) > _MAX_SEQUENCES:
                self._ended.popitem(last=False)
            return
        if key not in self._sequences and not step.start and side is Side.OLD:
            return
        self._sequences[key] = side
        self._sequences.move_to_end(key)
        if len(self._sequences) > _MAX_SEQUENCES:
            self._sequences.popitem(last=False)


def _id_of(step: SequenceStep) -> bytes:
    return f"{step.model}/{step.sequence_id}".encode("utf-8", "surrogatepass")
