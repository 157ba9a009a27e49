"""The open requests of one version: how they respond and end.

Every request gets exactly one last response.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nereid.core.retry_after import DrainEstimate
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.observability.metrics import OTHER
from nereid_scheduler.core.requests.entry import RESPONDED, Entry, about
from nereid_scheduler.core.requests.response_order import ResponseOrder
from nereid_scheduler.versions.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import RequestTimings
    from nereid.model_config import ModelConfig
    from nereid_scheduler.versions.version_context import VersionContext

_log = logging.getLogger(__name__)


class OpenRequests:
    """Requests of one version that lack their last response, in order of arrival."""

    def __init__(self, config: ModelConfig, number: int, context: VersionContext) -> None:
        self.entries: dict[Entry, None] = {}
        # Name and number of the version.
        self.named = config.name, number
        self.records = Records(
            config, self.named, context.latencies, context.timeline, context.traces
        )
        self.segment_owners = context.segment_owners
        batching = config.batching if config.sequences is None else config.sequences.oldest
        keeps_order = batching is not None and batching.preserve_ordering
        # Revision of the version's files, or of the models of an ensemble's steps.
        self.revision = b""
        self._order = ResponseOrder[tuple[Entry, InferResponse]]() if keeps_order else None
        self._on_end: list[Callable[[Entry], None]] = []
        self._drain = DrainEstimate()
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        name, number = self.named
        return f"'{name}' version {number}"

    def __len__(self) -> int:
        return len(self.entries)

    def set_revision(self, revision: bytes) -> None:
        """Set the revision of the version's files, if there is a response cache."""
        self.revision = revision

    def notify_ended(self, on_end: Callable[[Entry], None]) -> None:
        """Call a function when an entry has its last response or its client has cancelled it."""
        self._on_end.append(on_end)

    def add_entry(self, entry: Entry) -> None:
        """Add an accepted request."""
        self.entries[entry] = None
        if self._order is not None:
            self._order.append_request(entry)

    def respond(self, entry: Entry, response: InferResponse, revision: bytes) -> None:
        """Send an entry's last response, unless it has ended. revision: of the model's files."""
        lookup = entry.cache_lookup
        if entry.state is RESPONDED:
            self.segment_owners.drop_response(response)  # cancelled while it ran
            return
        if lookup is not None:
            entry.revision = revision
            if lookup.cache.needs_inline(lookup, response):
                response = self.segment_owners.inline_response(response)
        self.end_entry(entry, response)

    def respond_partially(self, entry: Entry, response: InferResponse) -> None:
        """Send a response that is not the entry's last."""
        if self._order is None:
            entry.respond(response)
        else:
            for responding, held in self._order.order_response(entry, (entry, response)):
                responding.respond(held)

    def end_entry(self, entry: Entry, response: InferResponse | None, failure: str = "") -> None:
        """Send an entry's last response; `None` means that it was cancelled.

        failure: the reason to count it as failed, if its batch does not count it.
        """
        self.records.end_request(entry, response, failure)
        entry.state = RESPONDED
        del self.entries[entry]
        for on_end in self._on_end:
            on_end(entry)
        if self._order is not None:
            last = None if response is None else (entry, response)
            for earlier, held in self._order.end_request(entry, last):
                earlier.respond(held)
        elif response is not None:
            entry.respond(response)
        if entry.cache_lookup is not None:
            entry.cache_lookup.cache.end_entry(entry, response)
        if self._idle is not None and not self.entries:
            self._idle.set_result(None)
            self._idle = None

    def fail_entry(
        self,
        entry: Entry,
        error: NereidError,
        reason: str = OTHER,
        timings: RequestTimings | None = None,
    ) -> None:
        """Send an error as the last response of an entry that is in no queue."""
        _log.debug("a request of %r failed: %s", self, error.message, extra=about(entry))
        response = InferResponse(0, error=error_status_of(error))
        response.timings = timings
        self.end_entry(entry, response, reason)

    def fail_entries(self, entries: Iterable[Entry], error: NereidError) -> None:
        """Fail each of these entries, unless it has its last response."""
        for entry in entries:
            if entry.state is not RESPONDED:
                self.fail_entry(entry, error)

    def retry_after_ms(self, now_ns: int) -> int:
        """Return the estimated milliseconds until the open requests are completed."""
        completed = self.records.statistics.success.count
        return self._drain.retry_after_ms(len(self.entries), completed, now_ns)

    async def idle(self) -> None:
        """Wait until no entry is open."""
        while self.entries:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)
