"""What clients get while a server ends, by the story of one SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.drain import OUTCOMES
from tests.conformance.exchange import Drained
from tests.conformance.row import Row, grouped, row


def rows() -> Iterator[Row]:
    yield from grouped("drain", (row(name, Drained(name)) for name in OUTCOMES), server="drain")
