"""Step of the data plane that fills in the records of requests, and has them read at their end."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_gateway.core.request_record import RecordReader

if TYPE_CHECKING:
    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle
    from nereid_gateway.core.request_record import RequestRecord
    from nereid_gateway.core.request_ring import RequestRing
    from nereid_gateway.plane.access_log import AccessLog
    from nereid_gateway.plane.slow_requests import SlowRequests
    from nereid_gateway.plane.tracing.request_traces import Tracing


class Recording(RecordReader):
    """An `InferStep` that fills in the records that fronts have made."""

    def __init__(
        self,
        infer: Infer,
        timeline: RequestRing | None,
        tracing: Tracing | None,
        slow_requests: SlowRequests | None,
        access_log: AccessLog | None = None,
    ) -> None:
        """Record requests for these readers. What is `None` is off."""
        self._infer = infer
        self._timeline = timeline
        self._tracing = tracing
        self._slow_requests = slow_requests
        self._access_log = access_log
        self._measures = any(reader is not None for reader in (tracing, slow_requests, access_log))

    def infer(self, request: ClientRequest, on_response: OnResponse, /) -> RequestHandle:
        """Pass a request on, and return its record as its handle."""
        record = request.record
        if record is None:
            return self._infer(request, on_response)
        # The record refers to the request from here on.
        request.record = None
        record.begin(request, on_response, self)
        if self._measures:
            self._measure(record, request)
        record.keep_handle(self._infer(request, record))
        return record

    def _measure(self, record: RequestRecord, request: ClientRequest) -> None:
        sample = None if self._tracing is None else self._tracing.sample(request)
        is_watched = self._slow_requests is not None and self._slow_requests.watched
        is_logged = self._access_log is not None and self._access_log.chooses()
        if is_watched or is_logged:
            # The scheduler then returns timings. The front writes them only to clients that asked
            # for them.
            request.wants_timings = True
        if is_watched or is_logged or sample is not None:
            record.measure(sample, is_watched, is_logged)
            record.sender = request.sender

    def read_record(self, record: RequestRecord) -> None:
        """Have the record of a request that has ended read by all that are on."""
        if record.submitted_ns:
            if record.sample is not None and self._tracing is not None:
                self._tracing.add_record(record, record.sample)
            if record.is_watched and self._slow_requests is not None:
                self._slow_requests.add_record(record)
            if record.is_logged and self._access_log is not None:
                self._access_log.add_record(record)
        if self._timeline is not None:
            self._timeline.add_record(record)
