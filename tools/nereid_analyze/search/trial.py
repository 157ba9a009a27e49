"""What a search asks for, and how it is asked. Pure."""

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
    """A candidate cannot be loaded, or all its requests fail; raised where its trial was yielded.
    The text says why.
    """


@dataclass(frozen=True, slots=True)
class Trial:
    """One window. batch_size: inferences in each request."""

    candidate: Candidate
    level: LoadLevel
    seconds: float
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A trial and what it showed."""

    trial: Trial
    measurement: Measurement


Search: TypeAlias = Generator[Trial, Measurement, T]
Measure: TypeAlias = Callable[[Trial], Measurement]


def resolve(search: Search[T], measure: Measure) -> T:
    """Measure what the search asks for until it has found what it returns. measure raises
    CandidateError for the search to catch.
    """
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
