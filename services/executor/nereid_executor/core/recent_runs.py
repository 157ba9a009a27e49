"""The requests that this executor runs and has run lately, by the ids that survive a resend.

A scheduler that died takes its connections along, not the batches in hand. Their requests are sent
again with the same ids; the next scheduler recalls the responses of their first runs here. Few and
small ones are kept. Responses in shared memory are lost: it was given back.

Written by the instances' threads for each batch, so without locks: every step is one operation of a
dict or a deque. Read by the event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    # The response to a request that has run; None: there is none to be had.
    OnRecalled = Callable[[pb.InferResponse | None], None]

_log = logging.getLogger(__name__)

_MAX_KEPT: Final = 256
# The largest response of a batch that is kept. Larger outputs are mostly in shared memory.
MAX_KEPT_BYTES: Final = 64 << 10


class RecentRuns:
    """One executor's. An owner is whoever runs a batch: it has one at a time."""

    def __init__(self, max_kept: int = _MAX_KEPT, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        """max_kept: how many batches; max_kept_bytes: of each."""
        self._max_kept_bytes = max_kept_bytes
        self._running: dict[Hashable, Sequence[int]] = {}
        # Ids and serialised Executed messages, oldest first.
        self._kept: deque[tuple[Sequence[int], bytes]] = deque(maxlen=max_kept)
        # Several schedulers may ask for one request, and several instances may run it.
        self._waiting: dict[int, tuple[OnRecalled, ...]] = {}

    # ---- for the instances

    def begin(self, owner: Hashable, ids: Sequence[int]) -> None:
        """The owner runs a batch of requests; those with the id 0 are nobody's."""
        self._running[owner] = ids

    def complete(self, owner: Hashable, ids: Sequence[int], reply: bytes | None) -> None:
        """A batch has run. reply: a whole Executed message; None: there is none."""
        if reply is not None and len(reply) <= self._max_kept_bytes:
            self._kept.append((ids, reply))
        self._running.pop(owner, None)
        if self._waiting:
            self._report_ended(ids, reply)

    def keep(self, ids: Sequence[int], reply: bytes) -> None:
        """A batch had run, which only now becomes known."""
        self._kept.append((ids, reply))

    def abandon(self, owner: Hashable) -> None:
        """The owner runs nothing any more: if it has a batch, that has no response."""
        ids = self._running.pop(owner, ())
        if self._waiting:
            self._report_ended(ids, None)

    def kept(self) -> list[tuple[Sequence[int], bytes]]:
        """The batches that have run: their ids and Executed messages, oldest first."""
        return list(self._kept)

    # ---- for sessions with the scheduler

    def begun_ids(self) -> list[int]:
        """Those that recall() has something to say about."""
        batches = [*self._running.values(), *(ids for ids, _ in self.kept())]
        return [each for ids in batches for each in ids if each]

    def recall(self, request_id: int, on_recalled: OnRecalled) -> None:
        """Have on_recalled called once the request has run, from any thread."""
        # It waits before we look: otherwise the run could end in between. Those that it ends for
        # just now are notified twice.
        self._waiting[request_id] = *self._waiting.get(request_id, ()), on_recalled
        if not self._is_running(request_id):
            self._report_ended((request_id,), None)

    # ---- inside

    def _report_ended(self, ids: Sequence[int], reply: bytes | None) -> None:
        """reply: None: it may be among those that are kept."""
        for place, request_id in enumerate(ids):
            if request_id not in self._waiting:
                continue
            response = self._find(request_id) if reply is None else _response_of(place, reply)
            if response is None and self._is_running(request_id):
                continue  # another instance may have one
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
