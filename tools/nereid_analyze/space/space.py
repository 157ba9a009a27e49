"""The space of all candidates of a search: all combinations of its settings' values."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nereid_analyze.space.candidate import Candidate, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Space:
    """A space of settings in a fixed order; candidates have the same order."""

    settings: tuple[Setting, ...]

    @property
    def size(self) -> int:
        """Number of candidates."""
        return math.prod(len(setting.values) for setting in self.settings) + self._has_own_default

    @property
    def default(self) -> Candidate:
        """The candidate with the default value of each setting."""
        return Candidate(
            tuple((setting.model, setting.name, setting.default) for setting in self.settings)
        )

    def all(self) -> Iterator[Candidate]:
        """Yield all candidates in order; the last setting changes fastest."""
        if self._has_own_default:
            yield self.default
        for values in itertools.product(*(setting.values for setting in self.settings)):
            yield self._candidate(values)

    def neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield the candidates that differ by one step, up or down, in one setting."""
        for setting in self.settings:
            index = setting.values.index(candidate.values(setting.model)[setting.name])
            for other in (index - 1, index + 1):
                if 0 <= other < len(setting.values):
                    yield candidate.replaced(setting.model, setting.name, setting.values[other])

    def sample(self, number: int, random: np.random.Generator) -> list[Candidate]:
        """Return all candidates, or a random sample of this size without repetition."""
        if self.size <= number:
            return list(self.all())
        candidates: dict[Candidate, None] = {self.default: None}
        while len(candidates) < number:
            values = (
                setting.values[random.integers(len(setting.values))] for setting in self.settings
            )
            candidates[self._candidate(tuple(values))] = None
        return list(candidates)

    def places(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Return a row for each candidate, with a number from 0 to 1 for each setting."""
        columns = []
        for index, setting in enumerate(self.settings):
            last = max(len(setting.values) - 1, 1)
            at = {value: place / last for place, value in enumerate(setting.values)}
            columns.append([at[candidate.choices[index][2]] for candidate in candidates])
        return np.array(columns, np.float64).reshape(len(self.settings), -1).T

    @property
    def _has_own_default(self) -> bool:
        return any(setting.default not in setting.values for setting in self.settings)

    def _candidate(self, values: Sequence[object]) -> Candidate:
        return Candidate(
            tuple(
                (setting.model, setting.name, value)  # type: ignore[misc]  # values are each setting's
                for setting, value in zip(self.settings, values, strict=True)
            )
        )
