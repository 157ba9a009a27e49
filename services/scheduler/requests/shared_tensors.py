"""Payloads in shared memory, as the scheduler sees them: it hands references on, and reads bytes
only for those who cannot open them.

A segment that an answer lies in belongs to an executor, and goes back to it when its gateway says
so, or when nobody is left to say so. Knows no queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from nereid.core.errors import Unavailable
from nereid.core.messages import InferResponse, SharedMemory, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid.shm.mappings import LostError, read
from nereid.shm.segments import owner_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.messages import Payload

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """An executor that has joined; loader.Session is one."""

    hello: pb.Hello

    def send(self, command: pb.ExecutorCommand) -> None:
        """Tell it something."""


class SharedTensors:
    """Whose segments are whose."""

    def __init__(self, domain: str = "") -> None:
        # Of this process; empty: it shares no memory.
        self.domain = domain
        self._owners: dict[str, Owner] = {}

    def shared_with(self, domain: str) -> bool:
        """Whether a process of this domain can open what is open to this one."""
        return bool(domain) and domain == self.domain

    def joined(self, owner: Owner) -> None:
        """An executor came."""
        if self.shared_with(owner.hello.memory_domain):
            self._owners[owner.hello.process] = owner

    def left(self, owner: Owner) -> None:
        """An executor went; what it shared went with it, or is its own affair."""
        if self._owners.get(owner.hello.process) is owner:
            del self._owners[owner.hello.process]

    def give_back(self, segment_names: Iterable[str], *, discard: bool = False) -> None:
        """Nobody wants these any more; discard: but somebody may still be reading them."""
        by_owner: dict[str, list[str]] = {}
        for segment_name in segment_names:
            by_owner.setdefault(owner_of(segment_name), []).append(segment_name)
        for process, names in by_owner.items():
            owner = self._owners.get(process)
            if owner is not None:
                release = pb.Release(segment_names=names, discard=discard)
                owner.send(pb.ExecutorCommand(release=release))

    def unwanted(self, response: InferResponse) -> None:
        """An answer has no taker any more."""
        if response.segment_name:
            self.give_back((response.segment_name,))

    def bring_in(self, response: InferResponse) -> InferResponse:
        """The same answer with its bytes inline: who gets it cannot open its segment, or keeps it,
        or shares it with others.
        """
        if not response.segment_name:
            return response
        try:
            payloads = inline(response.payloads)
        except LostError as error:
            _log.warning("an answer was lost with its executor: %s", error)
            lost = Unavailable("the executor was lost with its answer", accepted=True)
            return InferResponse(response.id, error=error_status_of(lost), more=response.more)
        finally:
            self.give_back((response.segment_name,))
        return InferResponse(response.id, response.head, payloads, more=response.more)


def inline(payloads: Iterable[Payload]) -> list[Payload]:
    """Payloads with all their bytes in them; raises LostError."""
    return [read(each) if isinstance(each, SharedMemory) else each for each in payloads]


def inline_if_there(payloads: list[Payload]) -> list[Payload]:
    """As inline, but what is gone stays a reference: its taker tells that it is not there."""
    try:
        return inline(payloads)
    except LostError as error:
        _log.warning("a request's data is gone: %s", error)
        return payloads
