"""One line for each request that is logged."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse, RequestTimings
from nereid.pb import kserve_pb2
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.plane.access_log import AccessLog
from nereid_gateway.plane.recording import Recording
from tests.support.gateway.scripted_mesh import ScriptedMesh

HEAD = kserve_pb2.ModelInferRequest(model_name="m").SerializeToString()
REPLY = kserve_pb2.ModelInferResponse(model_name="m", model_version="3").SerializeToString()


class Mesh(ScriptedMesh):
    """The steps behind a front, with an access log."""

    def __init__(self, path: Path, rate: int = 1, max_queued: int = 100) -> None:
        super().__init__()
        self.path = path
        self.log = AccessLog(str(path), rate, max_queued)
        self.recording = Recording(self.infer, None, None, None, self.log)

    def ask(self, *responses: InferResponse, protocol: str = "grpc", streamed: bool = False) -> Any:
        request = ClientRequest(7, HEAD, [b"1234", b"56"], "mine")
        request.record = RequestRecord(protocol, monotonic_ns(), None, streamed)
        handle = self.recording.infer(request, self.delivered.append)
        for response in responses:
            self.on_response(response)
        return handle

    def lines(self) -> list[dict[str, Any]]:
        """End the log, and return what it has."""
        self.log.close()
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def test_what_a_line_says(tmp_path: Path) -> None:
    it = Mesh(tmp_path / "log")
    timings = RequestTimings((("queue", 5000), ("inference", 70_000)))
    more = InferResponse(7, REPLY, [b"12345"], more=True)
    last = InferResponse(7, REPLY, [b"678"])
    last.timings = timings
    it.ask(more, last, streamed=True)
    [line] = it.lines()
    assert line.pop("time") > 1e9
    assert line.pop("duration_us") >= 0
    assert line == {
        "method": "stream",
        "model": "m",
        "version": "3",
        "status": "OK",
        "request_bytes": 6,
        "response_bytes": 8,
        "phases_us": {"queue": 5, "inference": 70},
        "id": "mine",
    }


def test_errors_and_cancelled_requests(tmp_path: Path) -> None:
    it = Mesh(tmp_path / "log")
    it.ask(InferResponse(7, b"", error=ErrorStatus(13, "failed\nagain")), protocol="http")
    it.ask().cancel()
    failed, cancelled = it.lines()
    assert (failed["method"], failed["status"]) == ("http", "INTERNAL")
    assert failed["error"] == "failed\nagain"
    assert cancelled["status"] == "CANCELLED"


def test_one_of_several_is_logged(tmp_path: Path) -> None:
    it = Mesh(tmp_path / "log", rate=3)
    for _ in range(7):
        it.ask(InferResponse(7, REPLY))
    assert len(it.lines()) == 3
    assert len(it.delivered) == 7


def test_a_full_disk_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    it = Mesh(Path("/dev/full"))
    for _ in range(2):
        it.ask(InferResponse(7, REPLY))
    assert len(it.delivered) == 2
    it.log.close()
    assert it.log.dropped == 2
    assert len(caplog.records) == 1


def test_a_pipe_that_nobody_reads_delays_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "pipe")
    # Open for both, so that neither end waits for the other.
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    # A full pipe blocks the thread.
    with contextlib.suppress(BlockingIOError):
        while os.write(reader, b"\n" * 4096):
            pass
    it = Mesh(tmp_path / "pipe", max_queued=3)
    for _ in range(9):
        it.ask(InferResponse(7, REPLY))
    assert len(it.delivered) == 9
    # The thread may hold one of them.
    assert it.log.dropped in (5, 6)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "access log: its file is written too slowly"
    ]
    written = b""
    while written.count(b"{") < 9 - it.log.dropped:
        with contextlib.suppress(BlockingIOError):
            written += os.read(reader, 1 << 20)
    it.log.close()
    os.close(reader)
