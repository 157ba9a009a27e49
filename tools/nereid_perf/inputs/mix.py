"""Whose turn it is among models with weights. Pure."""

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
        """random.Random is one."""

        def shuffle(self, x: MutableSequence[int], /) -> None: ...


_MOST_TURNS: Final = 10_000


class Deck:
    """Deals the models' indexes: each round has them exactly in proportion, in random order."""

    def __init__(self, weights: Sequence[Fraction], random: Shuffler) -> None:
        """Raises InputError if the proportions make a round too long."""
        scale = lcm(*(each.denominator for each in weights))
        counts = [int(each * scale) for each in weights]
        common = gcd(*counts)
        counts = [each // common for each in counts]
        if sum(counts) > _MOST_TURNS:
            raise InputError(
                f"weights of models: expected a sum of at most {_MOST_TURNS} in lowest terms, "
                f"found {sum(counts)}: round them"
            )
        self._round = [index for index, count in enumerate(counts) for _ in range(count)]
        self._random = random
        self._turns: deque[int] = deque()

    @property
    def round_length(self) -> int:
        return len(self._round)

    def deal(self) -> int:
        if not self._turns:
            self._random.shuffle(self._round)
            self._turns.extend(self._round)
        return self._turns.popleft()
