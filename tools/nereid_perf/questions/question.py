"""The protocol of a question: the question decides what to measure, and its caller measures."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from nereid_perf.measurement import LoadLevel, Measurement

T = TypeVar("T")
Wanted = TypeVar("Wanted")

Question: TypeAlias = Generator[LoadLevel, Measurement, T]
Measure: TypeAlias = Callable[[LoadLevel], Measurement]


def resolve(
    question: Generator[Wanted, Measurement, T], measure: Callable[[Wanted], Measurement]
) -> T:
    """Measure what the question asks for, until it ends; return its result."""
    try:
        wanted = next(question)
        while True:
            wanted = question.send(measure(wanted))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typeshed: StopIteration's is Any
