"""Chooses the model of the next request among models with weights."""

from __future__ import annotations

from collections import deque
from math import gcd, lcm
from typing import TYPE_CHECKING, Final

from nereid_perf.inputs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence
    from fractions import Fraction
    from typing import Protocol

    class Shuffler(Protocol):
        """A source of random order, such as random.Random."""

        def shuffle(self, x: MutableSequence[int], /) -> None:
            """Shuffle a list in place."""


_MAX_TURNS: Final = 10_000


class Deck:
    """Deals indexes of models. Each round matches the weights exactly, but in random order."""

    def __init__(self, weights: Sequence[Fraction], random: Shuffler) -> None:
        """Prepare a deck; raise InputError if the weights would make a round too long."""
        scale = lcm(*(weight.denominator for weight in weights))
        counts = [int(weight * scale) for weight in weights]
        common = gcd(*counts)
        counts = [count // common for count in counts]
        if sum(counts) > _MAX_TURNS:
            raise InputError(
                f"weights of models: expected a sum of at most {_MAX_TURNS} in lowest terms, "
                f"found {sum(counts)}: round them"
            )
        self._round = [index for index, count in enumerate(counts) for _ in range(count)]
        self._random = random
        self._turns: deque[int] = deque()

    @property
    def round_length(self) -> int:
        """Number of indexes in one round."""
        return len(self._round)

    def deal(self) -> int:
        """Return the index of the next model."""
        if not self._turns:
            self._random.shuffle(self._round)
            self._turns.extend(self._round)
        return self._turns.popleft()
