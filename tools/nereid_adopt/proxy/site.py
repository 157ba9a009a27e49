"""State that all connections of the proxy share."""

# layout: compiled

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from nereid.bounded_cache import BoundedCache
from nereid_adopt.calls.regions import Regions
from nereid_adopt.calls.traffic import Side, Traffic
from nereid_adopt.proxy.held_bytes import HeldBytes
from nereid_adopt.proxy.http_responses import ResponseHeads
from nereid_adopt.proxy.recorder import REUSED_ID

if TYPE_CHECKING:
    from nereid.rpc.net.tls_files import Tls
    from nereid_adopt.calls.requests import RequestFacts
    from nereid_adopt.calls.traffic import SequenceStep
    from nereid_adopt.proxy.http_requests import RequestHead
    from nereid_adopt.proxy.recorder import Recorder

_MAX_HEADS: Final = 512


class Closable(Protocol):
    """A client's connection."""

    def abort(self) -> None:
        """Close the connection at once."""


class Site:
    """Both servers' addresses (old, new), the traffic between them, and the open connections."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        http_addresses: tuple[str, str],
        grpc_addresses: tuple[str, str],
        recorder: Recorder,
        *,
        max_copied_bytes: int = 64 << 20,
        max_held_bytes: int = 256 << 20,
        max_change_s: float = 5.0,
        http_tls: tuple[Tls | None, Tls | None] = (None, None),
        grpc_tls: tuple[Tls | None, Tls | None] = (None, None),
    ) -> None:
        """Create the state.

        max_copied_bytes: larger requests and responses are passed on without a copy, as are those
        that exceed max_held_bytes with all others. max_change_s: how long the change of one server
        may keep the client waiting for the other's.
        """
        self.http_addresses = http_addresses
        self.grpc_addresses = grpc_addresses
        self.http_tls = http_tls
        self.grpc_tls = grpc_tls
        self.recorder = recorder
        self.max_copied_bytes = max_copied_bytes
        self.held_bytes = HeldBytes(max_held_bytes)
        self.max_change_s = max_change_s
        self.traffic = Traffic(has_copies=recorder.has_copies)
        self.regions = Regions()
        self.http_heads = ResponseHeads()
        self.request_heads: BoundedCache[bytes, RequestHead] = BoundedCache(_MAX_HEADS)
        self.connections: set[Closable] = set()
        self._streams = count()

    def plan(self, facts: RequestFacts) -> tuple[Side, bool]:
        """Return who responds to an inference, and whether it is to be copied; count it if not.

        By weight, if that server has its regions.
        """
        step = facts.step
        side = self.traffic.side_of_request(step)
        if facts.input_ranges or facts.output_ranges:
            side = self._side_with_regions(side, facts)
        is_copied = self.traffic.is_copied(step)
        if not is_copied:
            self.recorder.not_sampled += 1
        elif step is not None and self.traffic.is_kept(step):
            is_copied = False
            self.recorder.skip(step.model, REUSED_ID, step)
        return side, is_copied

    def _side_with_regions(self, side: Side, facts: RequestFacts) -> Side:
        if self.regions.are_at(side, facts) or not self.regions.are_at(side.other, facts):
            return side
        if facts.step is not None:
            self.traffic.note_step(facts.step, side.other)
        return side.other

    def may_fail_over(self, step: SequenceStep | None) -> bool:
        """Return whether the old server can respond to a request in the new one's place.

        It has a sequence's earlier requests as copies, unless there were none of them.
        """
        return (
            step is None
            or step.start
            or (self.traffic.is_copied(step) and not self.recorder.is_broken(step))
        )

    async def fail_over(self, step: SequenceStep | None) -> bool:
        """Have the old server respond to further requests; return whether it can."""
        # Copies of earlier requests, or of the id's earlier sequence, may be on their way.
        waits = step is not None and (not step.start or self.recorder.has_copies(step.key))
        if waits and self.may_fail_over(step):
            await self.recorder.drain()
        if not self.may_fail_over(step):
            return False
        if step is not None:
            self.traffic.note_step(step, Side.OLD)
        self.recorder.failovers += 1
        return True

    def next_stream(self) -> int:
        """Return a new stream's number."""
        return next(self._streams)
