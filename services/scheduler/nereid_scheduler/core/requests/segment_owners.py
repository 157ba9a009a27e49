"""Owners of the shared-memory segments that contain payloads.

The scheduler forwards references. It reads the bytes only for processes that cannot open a segment.
An executor gets a response's segment back when the gateway releases it or disconnects.
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
    """Interface for an executor that has joined; executors.sessions.Session implements it."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send a command to the executor."""


class SegmentOwners:
    """Executors that share memory with this process; a segment's name says who owns it."""

    def __init__(self, domain: str = "") -> None:
        # Shared-memory domain of this process; empty if the process shares no memory.
        self.domain = domain
        self._owners: dict[str, SegmentOwner] = {}

    def shares_domain(self, domain: str) -> bool:
        """Return whether a process of this domain can open the same segments as this process."""
        return bool(domain) and domain == self.domain

    def add_owner(self, owner: SegmentOwner) -> None:
        """Add an executor that joined."""
        if self.shares_domain(owner.hello.shm_namespace):
            self._owners[owner.hello.process] = owner

    def remove_owner(self, owner: SegmentOwner) -> None:
        """Remove an executor that left. Its segments are gone, or the executor reclaims them."""
        if self._owners.get(owner.hello.process) is owner:
            del self._owners[owner.hello.process]

    def return_segments(self, segment_names: Iterable[str], *, discard: bool = False) -> None:
        """Return segments; discard: a process may still read them, so they must not be reused."""
        by_owner: dict[str, list[str]] = {}
        for segment_name in segment_names:
            by_owner.setdefault(segment_owner(segment_name), []).append(segment_name)
        for process, names in by_owner.items():
            owner = self._owners.get(process)
            if owner is not None:
                release = pb.Release(segment_names=names, discard=discard)
                owner.send(pb.ExecutorCommand(release=release))

    def drop_response(self, response: InferResponse) -> None:
        """Drop a response whose client has cancelled, and return its segment."""
        if response.segment_name:
            self.return_segments((response.segment_name,))

    def inline_response(self, response: InferResponse) -> InferResponse:
        """Return the response with its bytes inline, or an error if its segment is lost.

        Call this if the receiver cannot open the segment, keeps the response, or shares it with
        others.
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
    """Return payloads as bytes, not references. Raises SegmentLostError if a segment is lost."""
    return [read(payload) if isinstance(payload, SharedMemory) else payload for payload in payloads]


def inline_if_there(payloads: list[Payload]) -> list[Payload]:
    """Return payloads inline, or unchanged if a segment is lost: the executor then reports it."""
    try:
        return inline(payloads)
    except SegmentLostError as error:
        _log.warning("a request's shared memory was lost: %s", error)
        return payloads
