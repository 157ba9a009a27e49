"""Payloads in shared memory: the scheduler passes references on, and reads the bytes only for
processes that cannot open the segment.

The segment of a response belongs to an executor. It is returned when its gateway releases it, or
when the gateway disconnects. Knows no queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid.shm.mappings import SegmentLostError, read
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import segment_owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.wire.messages import Payload

_log = logging.getLogger(__name__)


class SegmentOwner(Protocol):
    """An executor that has joined; executors.sessions.Session is one."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send it a command."""


class SegmentOwners:
    """The executors that share memory with this process, by the process that owns a segment."""

    def __init__(self, domain: str = "") -> None:
        # Of this process; empty: it shares no memory.
        self.domain = domain
        self._owners: dict[str, SegmentOwner] = {}

    def shares_domain(self, domain: str) -> bool:
        """Whether a process of this domain can open the segments that this one can."""
        return bool(domain) and domain == self.domain

    def add_owner(self, owner: SegmentOwner) -> None:
        """An executor joined."""
        if self.shares_domain(owner.hello.shm_namespace):
            self._owners[owner.hello.process] = owner

    def remove_owner(self, owner: SegmentOwner) -> None:
        """An executor left. Its segments went with it, or it reclaims them itself."""
        if self._owners.get(owner.hello.process) is owner:
            del self._owners[owner.hello.process]

    def return_segments(self, segment_names: Iterable[str], *, discard: bool = False) -> None:
        """Return segments to their executors. discard: not to be reused, as they may be read."""
        by_owner: dict[str, list[str]] = {}
        for segment_name in segment_names:
            by_owner.setdefault(segment_owner(segment_name), []).append(segment_name)
        for process, names in by_owner.items():
            owner = self._owners.get(process)
            if owner is not None:
                release = pb.Release(segment_names=names, discard=discard)
                owner.send(pb.ExecutorCommand(release=release))

    def drop_response(self, response: InferResponse) -> None:
        """Drop a response whose client has cancelled."""
        if response.segment_name:
            self.return_segments((response.segment_name,))

    def inline_response(self, response: InferResponse) -> InferResponse:
        """The response with its bytes inline, for a receiver that cannot open its segment, keeps
        the response, or shares it with others. An error if the segment is lost.
        """
        if not response.segment_name:
            return response
        try:
            payloads = inline(response.payloads)
        except SegmentLostError as error:
            _log.warning("a response was lost with its executor: %s", error)
            lost = Unavailable("the executor was lost before its response was read", accepted=True)
            return InferResponse(response.id, error=error_status_of(lost), more=response.more)
        finally:
            self.return_segments((response.segment_name,))
        return response.with_payloads(payloads)


def inline(payloads: Iterable[Payload]) -> list[Payload]:
    """Payloads with all their bytes in them; raises SegmentLostError."""
    return [read(each) if isinstance(each, SharedMemory) else each for each in payloads]


def inline_if_there(payloads: list[Payload]) -> list[Payload]:
    """As inline, but payloads of a lost segment stay references: the executor reports them lost."""
    try:
        return inline(payloads)
    except SegmentLostError as error:
        _log.warning("a request's shared memory was lost: %s", error)
        return payloads
