"""Access log: one line of JSON for each request, or for one of several."""

from __future__ import annotations

import logging
import os
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.tracing import is_sampled
from nereid.pb import kserve_pb2
from nereid.rpc.grpc.status import Status
from nereid_gateway.core import routes
from nereid_gateway.core.access.principal import principal_of

if TYPE_CHECKING:
    from nereid_gateway.core.request_record import RequestRecord

_log = logging.getLogger(__name__)

STANDARD_OUTPUT: Final = "-"
_MAX_TEXT: Final = 1000
_MAX_QUEUED: Final = 8192
_CLOSE_TIMEOUT_S: Final = 2.0
_WARNING_INTERVAL_S: Final = 60.0
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class AccessLog:
    """Queues lines about requests that have ended, which a thread writes.

    A pipe whose reader is slow, or a disk that hangs, blocks the thread alone: meanwhile lines are
    queued, and dropped once the queue is full. Call close() once.
    """

    def __init__(self, path: str, rate: int, max_queued: int = _MAX_QUEUED) -> None:
        """Append to the file at this path, "-" for standard output, one of `rate` requests."""
        # One write per line: the gateways of a group append to one file.
        self._file = 1 if path == STANDARD_OUTPUT else os.open(path, _APPEND, 0o644)
        self._rate = rate
        self._count = 0
        self._max_queued = max_queued
        # Each is counted by one thread.
        self._refused = 0
        self._unwritten = 0
        self._next_warning_s = 0.0
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_lines, name="access log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of lines that the file did not take, or not in time."""
        return self._refused + self._unwritten

    def chooses(self) -> bool:
        """Return whether the next request is logged."""
        self._count += 1
        return (self._count - 1) % self._rate == 0

    def add_record(self, record: RequestRecord) -> None:
        """Queue the line of a request that has ended; drop it if the queue is full."""
        if self._queue.qsize() < self._max_queued:
            self._queue.put(orjson.dumps(_line(record)) + b"\n")
            return
        self._refused += 1
        now_s = time.monotonic()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_INTERVAL_S
            _log.warning("access log: its file is written too slowly; dropped=%d", self.dropped)

    def close(self) -> None:
        """Write the queued lines, for a bounded time, and end the thread."""
        self._queue.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _write_lines(self) -> None:
        failed = False
        while (line := self._queue.get()) is not None:
            try:
                os.write(self._file, line)
            except OSError as error:
                # A full disk must not fill another log.
                if not failed:
                    _log.warning("the access log cannot be written: %s", error)
                failed = True
                self._unwritten += 1
            else:
                failed = False
        if self._file != 1:
            os.close(self._file)


def _line(record: RequestRecord) -> dict[str, Any]:
    request = record.request
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    method = "stream" if record.streamed and record.protocol == "grpc" else record.protocol
    line: dict[str, Any] = {
        "time": round(time.time(), 3),
        "method": method,
        "model": head.model_name,
        "version": head.model_version,
        "status": Status(record.status).name,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "duration_us": (record.ended_ns - record.received_ns) // 1000,
    }
    if record.tokenized_ns is not None:
        # One of several requests of a call to another endpoint than its own.
        line["route"] = routes.template(record.call.target)
    if record.response_head and not head.model_version:
        reply = kserve_pb2.ModelInferResponse.FromString(record.response_head)
        line["version"] = reply.model_version
    if record.timings is not None:
        line["phases_us"] = {name: ns // 1000 for name, ns in record.timings.phases}
    if request.request_id:
        line["id"] = request.request_id[:_MAX_TEXT]
    principal = principal_of(record.sender)
    if principal is not None and not principal.is_anonymous:
        line["principal"] = principal.name
    if is_sampled(request.trace_context):
        line["trace_id"] = request.trace_context[TRACE_ID].hex()
    if record.error is not None:
        line["error"] = record.error.message[:_MAX_TEXT]
    return line
