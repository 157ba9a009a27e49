"""The requests that this executor runs and has run lately, by the ids that survive a resend.

A scheduler that died takes its connections along, not the batches in hand. Their requests are sent
again with the same ids; the next scheduler asks here for the responses of their first runs. What is
kept is bounded by count and bytes. Responses in shared memory are not kept: it was given back.
Written by the instances' threads, asked from the event loop.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    # The response to a request that has run; None: there is none to be had.
    OnRecalled = Callable[[pb.InferResponse | None], None]

_log = logging.getLogger(__name__)

_MAX_KEPT: Final = 1024
_MAX_KEPT_BYTES: Final = 16 << 20
# Larger ones are not worth the memory: their requests run again, or fail.
_MAX_BATCH_BYTES: Final = 1 << 20
_MAX_REPORTED: Final = 65536


class RecentRuns:
    """One executor's. An owner is whoever runs a batch: it has one at a time."""

    def __init__(self, max_kept: int = _MAX_KEPT, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._max_kept = max_kept
        self._max_kept_bytes = max_kept_bytes
        self._lock = threading.Lock()
        self._running: dict[Hashable, Sequence[int]] = {}
        # Ids and serialised Executed messages, oldest first.
        self._kept: deque[tuple[Sequence[int], bytes]] = deque()
        self._kept_bytes = 0
        self._waiting: dict[int, OnRecalled] = {}

    # ---- for the instances

    def begin(self, owner: Hashable, ids: Sequence[int]) -> None:
        """The owner runs a batch of requests; those with the id 0 are nobody's."""
        with self._lock:
            self._running[owner] = ids

    def complete(self, owner: Hashable, ids: Sequence[int], executed: bytes | None) -> None:
        """A batch has run. executed: a whole Executed message; None: it cannot be kept."""
        with self._lock:
            self._running.pop(owner, None)
            if executed is not None:
                self._keep(ids, executed)
            if self._waiting:
                self._report_ended(ids)

    def keep(self, ids: Sequence[int], executed: bytes) -> None:
        """A batch had run, which only now becomes known."""
        with self._lock:
            self._keep(ids, executed)

    def abandon(self, owner: Hashable) -> None:
        """The owner runs nothing any more: if it has a batch, that has no response."""
        with self._lock:
            ids = self._running.pop(owner, ())
            if self._waiting:
                self._report_ended(ids)

    def kept(self) -> list[tuple[Sequence[int], bytes]]:
        """The batches that have run: their ids and Executed messages, oldest first."""
        with self._lock:
            return list(self._kept)

    # ---- for sessions with the scheduler

    def begun_ids(self) -> list[int]:
        """Those that recall() has something to say about, at most so many of the latest."""
        with self._lock:
            ids = [each for batch in self._running.values() for each in batch if each]
            for batch, _ in reversed(self._kept):
                ids.extend(each for each in batch if each)
                if len(ids) >= _MAX_REPORTED:
                    break
        return ids[:_MAX_REPORTED]

    def recall(self, request_id: int, on_recalled: OnRecalled) -> None:
        """Have on_recalled called once the request has run, from any thread."""
        with self._lock:
            if any(request_id in batch for batch in self._running.values()):
                self._waiting[request_id] = on_recalled
                return
            response = self._find(request_id)
        on_recalled(response)

    # ---- inside, with the lock held

    def _keep(self, ids: Sequence[int], executed: bytes) -> None:
        if len(executed) > _MAX_BATCH_BYTES:
            return
        self._kept.append((ids, executed))
        self._kept_bytes += len(executed)
        while len(self._kept) > self._max_kept or self._kept_bytes > self._max_kept_bytes:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _report_ended(self, ids: Sequence[int]) -> None:
        for each in ids:
            on_recalled = self._waiting.pop(each, None)
            if on_recalled is not None:
                on_recalled(self._find(each))

    def _find(self, request_id: int) -> pb.InferResponse | None:
        for ids, executed in reversed(self._kept):
            if request_id in ids:
                return _response_of(ids.index(request_id), executed)
        return None


def _response_of(member: int, executed: bytes) -> pb.InferResponse | None:
    try:
        reply = pb.Executed.FromString(executed)
    except DecodeError:
        _log.exception("a kept response is malformed")
        return None
    if reply.partial or member >= len(reply.responses):
        return None
    response = reply.responses[member]
    if any(payload.HasField("shared_memory") for payload in response.payloads):
        return None
    return response
