"""Trials, which are measurements that a search asks for, and the protocol between both sides."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from nereid_perf.measurement import Measurement

if TYPE_CHECKING:
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import LoadLevel

T = TypeVar("T")


class CandidateError(Exception):
    """Raised if a candidate cannot be loaded, or all of its requests fail."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One window to measure; `batch_size` is the number of inferences in each request."""

    candidate: Candidate
    level: LoadLevel
    seconds: float
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A trial and its measurement."""

    trial: Trial
    measurement: Measurement


Search: TypeAlias = Generator[Trial, Measurement, T]
Measure: TypeAlias = Callable[[Trial], Measurement]


def resolve(search: Search[T], measure: Measure) -> T:
    """Measure what the search asks for; throw measure()'s CandidateError into it."""
    try:
        trial = next(search)
        while True:
            try:
                measurement = measure(trial)
            except CandidateError as error:
                trial = search.throw(error)
            else:
                trial = search.send(measurement)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typeshed: StopIteration's is Any
