"""All candidates of a search, as the product of its settings' values. Pure."""

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
    """settings: in a fixed order, which candidates have as well."""

    settings: tuple[Setting, ...]

    @property
    def size(self) -> int:
        return math.prod(len(each.values) for each in self.settings)

    @property
    def default(self) -> Candidate:
        return Candidate(tuple((each.model, each.name, each.default) for each in self.settings))

    def all(self) -> Iterator[Candidate]:
        """In order; the last setting changes fastest."""
        for values in itertools.product(*(each.values for each in self.settings)):
            yield self._candidate(values)

    def neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        """One step up or down in one setting."""
        for setting in self.settings:
            index = setting.values.index(candidate.values(setting.model)[setting.name])
            for other in (index - 1, index + 1):
                if 0 <= other < len(setting.values):
                    yield candidate.replaced(setting.model, setting.name, setting.values[other])

    def sample(self, number: int, random: np.random.Generator) -> list[Candidate]:
        """All of them, or so many at random, none twice."""
        if self.size <= number:
            return list(self.all())
        found: dict[Candidate, None] = {self.default: None}
        while len(found) < number:
            values = (each.values[random.integers(len(each.values))] for each in self.settings)
            found[self._candidate(tuple(values))] = None
        return list(found)

    def places(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Each candidate as numbers from 0 to 1, one for each setting."""
        columns = []
        for index, setting in enumerate(self.settings):
            last = max(len(setting.values) - 1, 1)
            at = {value: place / last for place, value in enumerate(setting.values)}
            columns.append([at[each.choices[index][2]] for each in candidates])
        return np.array(columns, np.float64).reshape(len(self.settings), -1).T

    def _candidate(self, values: Sequence[object]) -> Candidate:
        return Candidate(
            tuple(
                (each.model, each.name, value)  # type: ignore[misc]  # values are each setting's
                for each, value in zip(self.settings, values, strict=True)
            )
        )
