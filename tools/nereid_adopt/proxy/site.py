"""State that all connections of the proxy share."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from nereid_adopt.calls.regions import Regions
from nereid_adopt.calls.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from nereid_adopt.calls.requests import RequestFacts
    from nereid_adopt.calls.traffic import Side
    from nereid_adopt.proxy.recorder import Recorder

    class Closable(Protocol):
        """A client's connection."""

        def abort(self) -> None:
            """Close the connection at once."""


@dataclass(kw_only=True)
class Site:
    """Both servers' addresses (old, new), the traffic between them, and the open connections.

    max_copied_bytes: larger requests and responses are passed on without a copy. max_change_s: how
    long the change of one server may keep the client waiting for the other's.
    """

    http_addresses: tuple[str, str]
    grpc_addresses: tuple[str, str]
    recorder: Recorder
    max_copied_bytes: int = 64 << 20
    max_change_s: float = 5.0
    traffic: Traffic = field(default_factory=Traffic)
    regions: Regions = field(default_factory=Regions)
    connections: set[Closable] = field(default_factory=set)
    _streams: Iterator[int] = field(default_factory=count)

    def side_of_request(self, facts: RequestFacts) -> Side:
        """Return who responds to an inference: by weight, if that server has its regions."""
        side = self.traffic.side_of_request(facts.step)
        if self.regions.are_at(side, facts) or not self.regions.are_at(side.other, facts):
            return side
        if facts.step is not None:
            self.traffic.note_step(facts.step, side.other)
        return side.other

    def next_stream(self) -> int:
        """Return a new stream's number."""
        return next(self._streams)
