"""Decides which requests of a lost instance run again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nereid.core.errors import NereidError, Unavailable
from nereid_scheduler.core.requests.entry import RESPONDED, Entry, about
from nereid_scheduler.versions.reruns.resent_requests import may_have_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.batcher import Batcher
    from nereid_scheduler.batching.sequences.sequence_batcher import SequenceBatcher
    from nereid_scheduler.versions.open_requests import OpenRequests

_log = logging.getLogger(__name__)


class LostRequests:
    """Queue the requests of one version's lost instances again, or fail them."""

    def __init__(
        self,
        config: ModelConfig,
        requests: OpenRequests,
        batcher: Batcher,
        sequences: SequenceBatcher | None,
        max_retries: int,
    ) -> None:
        self._at_most_once = config.at_most_once
        self._requests = requests
        self._batcher = batcher
        self._sequences = sequences
        self._max_retries = max_retries

    def retry(self, entries: Iterable[Entry], cause: str, *, begun: bool = True) -> bool:
        """Queue entries again, ahead of the others; return whether there were any.

        begun: whether they may have begun, so that those of an at-most-once model fail.
        """
        requests = self._requests
        if begun and self._at_most_once:
            requests.fail_entries(entries, may_have_run(requests.named[0], cause))
            return False
        retries = []
        for entry in entries:
            if entry.state is not RESPONDED:
                error = self._retry_error(entry, cause)
                if error is None:
                    retries.append(entry)
                else:
                    requests.fail_entry(entry, error)
        if retries:
            self._batcher.requeue(retries)
            _log.warning("%s; %d of its requests run again", cause, len(retries))
            for entry in retries:
                _log.debug("%s: its request runs again", cause, extra=about(entry))
        return bool(retries)

    def _retry_error(self, entry: Entry, cause: str) -> NereidError | None:
        """Return an error if an entry must not run again; else count a retry, return `None`."""
        if self._sequences is not None:
            error = self._sequences.retry_error(entry, cause)
            if error is not None:
                return error
        if entry.retries >= self._max_retries:
            attempts = entry.retries + 1
            text = f"{cause}, {attempts} of {attempts} attempts to execute the request"
            return Unavailable(text, accepted=True)
        self._requests.records.retry(entry)
        if entry.retries == self._max_retries:
            # The last attempt runs alone: if the entry crashes executors, no other request fails.
            entry.key = entry
        return None
