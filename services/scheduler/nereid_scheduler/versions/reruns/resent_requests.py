"""Requests that their gateway sends again because the scheduler, or a response, was lost.

Such a request gets the response of its first run. Without a first run it runs again, or fails if
its model runs requests at most once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nereid.core.errors import Aborted, DeadlineExceeded
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.observability.logging import request_log_extra
from nereid_scheduler.core.requests.entry import identify_response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nereid.core.wire.messages import InferRequest
    from nereid_scheduler.core.requests.load_queue import OnResponse
    from nereid_scheduler.versions.reruns.first_runs import FirstRuns

_log = logging.getLogger(__name__)


def may_have_run(model: str, cause: str) -> Aborted:
    """Return the error for a request that may have run and must not run twice."""
    text = f"{cause}; the request may have run, and model '{model}' runs requests at most once"
    return Aborted(text, accepted=True)


class ResentRequest:
    """Resent request that waits for its first run. It is a PendingRequest."""

    def __init__(
        self,
        request: InferRequest,
        first_runs: FirstRuns,
        on_response: OnResponse,
        on_unknown: Callable[[], None],
    ) -> None:
        """on_unknown: called later if the first run gives no response."""
        self._request = request
        self._first_runs = first_runs
        self._on_response = on_response
        self._on_unknown = on_unknown
        self._deadline_timer: asyncio.TimerHandle | None = None

    def wait(self, run_ids: Collection[int]) -> bool:
        """Begin to wait; return False if there is no first run to wait for."""
        request = self._request
        if not self._first_runs.find(self, request.id, run_ids):
            return False
        if request.deadline is not None:
            left_s = max(0.0, request.deadline - time.monotonic())
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_later(left_s, self._on_deadline)
        return True

    def cancel(self) -> None:
        """Stop waiting; the first run goes on."""
        self._forget()

    def set_flow(self, *, paused: bool) -> None:
        """Do nothing, as there are no responses yet."""

    def on_first_run(self, response: InferResponse | None) -> None:
        """Send the first run's response, or call on_unknown if it is `None`."""
        self._forget()
        if response is None:
            self._on_unknown()
            return
        extra = request_log_extra(self._request.request_id, self._request.trace_context)
        _log.info("a request that was sent again gets the response of its first run", extra=extra)
        identify_response(self._request, response)
        self._on_response(response)

    def _on_deadline(self) -> None:
        self._forget()
        error = DeadlineExceeded("the deadline passed while the request was running", accepted=True)
        response = InferResponse(0, error=error_status_of(error))
        identify_response(self._request, response)
        self._on_response(response)

    def _forget(self) -> None:
        self._first_runs.forget(self)
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
