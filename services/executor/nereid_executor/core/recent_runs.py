"""The requests that this executor runs or has run lately, by ids that are the same in a resend.

When a scheduler dies, instances go on executing. The next scheduler asks for these responses.
Responses in shared memory are lost, because the memory was given back. There are no locks, since
threads write for each batch: every step is one operation of a dict or a deque.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    # Receives the response to a request that has run, or `None` if there is no response.
    OnRecalled = Callable[[pb.InferResponse | None], None]

_log = logging.getLogger(__name__)

_MAX_KEPT: Final = 256
# Larger outputs (in bytes) are mostly in shared memory.
MAX_KEPT_BYTES: Final = 64 << 10


class RecentRuns:
    """The recent runs of one executor. An owner runs batches, one at a time."""

    def __init__(self, max_kept: int = _MAX_KEPT, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._running: dict[Hashable, Sequence[int]] = {}
        # A tuple has the ids of the requests and the serialised Executed message; oldest first.
        self._kept: deque[tuple[Sequence[int], bytes]] = deque(maxlen=max_kept)
        # Key: a request's id. Several schedulers may ask for one request, and several instances may
        # run it.
        self._waiting: dict[int, tuple[OnRecalled, ...]] = {}

    def begin(self, owner: Hashable, ids: Sequence[int]) -> None:
        """Note that the owner runs a batch of requests. A request with id 0 cannot be recalled."""
        self._running[owner] = ids

    def complete(self, owner: Hashable, ids: Sequence[int], reply: bytes | None) -> None:
        """Note that a batch has run. reply: the complete Executed message, if there is one."""
        if reply is not None and len(reply) <= self._max_kept_bytes:
            self._kept.append((ids, reply))
        self._running.pop(owner, None)
        if self._waiting:
            self._report_ended(ids, reply)

    def keep(self, ids: Sequence[int], reply: bytes) -> None:
        """Keep the reply of a batch that a model's own process has run, and reports only now."""
        self._kept.append((ids, reply))

    def abandon(self, owner: Hashable) -> None:
        """Note that the owner runs nothing any more. Its unfinished batch gets no response."""
        ids = self._running.pop(owner, ())
        if self._waiting:
            self._report_ended(ids, None)

    def kept(self) -> list[tuple[Sequence[int], bytes]]:
        """Return the ids and the Executed message of each kept batch, oldest first."""
        return list(self._kept)

    def begun_ids(self) -> list[int]:
        """Return the ids of the requests that run or have run. recall() can find them."""
        batches = [*self._running.values(), *(ids for ids, _ in self.kept())]
        return [request_id for ids in batches for request_id in ids if request_id]

    def recall(self, request_id: int, on_recalled: OnRecalled) -> None:
        """Arrange that on_recalled is called, from any thread, once the request has run."""
        # The callback is registered first, since the run could end during the look-up. It may then
        # be called twice.
        self._waiting[request_id] = *self._waiting.get(request_id, ()), on_recalled
        if not self._is_running(request_id):
            self._report_ended((request_id,), None)

    def _report_ended(self, ids: Sequence[int], reply: bytes | None) -> None:
        for place, request_id in enumerate(ids):
            if request_id not in self._waiting:
                continue
            response = self._find(request_id) if reply is None else _response_of(place, reply)
            if response is None and self._is_running(request_id):
                continue
            for on_recalled in self._waiting.pop(request_id, ()):
                on_recalled(response)

    def _is_running(self, request_id: int) -> bool:
        return any(request_id in ids for ids in list(self._running.values()))

    def _find(self, request_id: int) -> pb.InferResponse | None:
        for ids, reply in reversed(self.kept()):
            if request_id in ids:
                return _response_of(ids.index(request_id), reply)
        return None


def _response_of(member: int, reply: bytes) -> pb.InferResponse | None:
    try:
        message = pb.Executed.FromString(reply)
    except DecodeError:
        _log.exception("the Executed message of a batch that was kept is malformed")
        return None
    if message.partial or member >= len(message.responses):
        return None
    response = message.responses[member]
    if response.rescheduled or any(
        payload.HasField("shared_memory") for payload in response.payloads
    ):
        return None
    return response
