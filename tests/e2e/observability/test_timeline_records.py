"""What the services of a real mesh record for timelines, and how a gateway gathers it."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from nereid.timeline import PATH
from nereid.timeline.records import (
    DELAY,
    BatchRecord,
    EndedRequest,
    Event,
    ExecutionRecord,
    GatewayRequest,
    Timeline,
    Wait,
)
from nereid.timeline.wire import read_timeline
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import save_echo

pytestmark = pytest.mark.slow

EXECUTOR = "nereid_executor"
DELAY_MS = 30
R = TypeVar("R")


def fetch(mesh: Mesh, last_s: float = 60) -> Timeline:
    status, body = mesh.get(f"{PATH}?last={last_s}")
    assert status == 200, body
    return read_timeline(body)


def records(timeline: Timeline, kind: type[R]) -> list[R]:
    return [
        each for service in timeline.services for each in service.records if isinstance(each, kind)
    ]


def tensor(module: Any) -> Any:
    made = module.InferInput("INPUT0", [1, 4], "FP32")
    made.set_data_from_numpy(np.ones((1, 4), np.float32))
    return made


def send(mesh: Mesh, model: str) -> None:
    """A request by each way, with ids of their own."""
    with httpclient.InferenceServerClient(mesh.http) as client:
        client.infer(model, [tensor(httpclient)], request_id=f"{model}-http")
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        client.infer(model, [tensor(grpcclient)], request_id=f"{model}-grpc")
        came: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: came.put((result, error)))
        client.async_stream_infer(model, [tensor(grpcclient)], request_id=f"{model}-stream")
        assert came.get(timeout=30)[1] is None


@pytest.fixture(
    scope="module", params=["none", pytest.param("scheduler", marks=pytest.mark.nightly)]
)
def it(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("timeline")
    models = root / "models"
    save_echo(models, "plain")
    batching = f"max_queue_delay_microseconds: {DELAY_MS * 1000} preferred_batch_size: [ 4 ]"
    save_echo(models, "batched", f"dynamic_batching {{ {batching} }}\n")
    save_echo(models, "kept", "response_cache { enable: true }\n")
    flags = (f"--join={request.param}", "--cache-config=local,size=1048576")
    with running(models, root / "log", *flags, "--cache-timeout-ms=10000") as mesh:
        yield mesh


def test_each_request_is_found_at_each_service(it: Mesh) -> None:
    send(it, "plain")
    timeline = fetch(it)
    assert timeline.missing == []
    assert {each.kind for each in timeline.services} == {"gateway", "scheduler", "executor"}
    assert all((each.offset_ns, each.error_ns) == (0, 0) for each in timeline.services)
    requests = {
        each.request_id: each
        for each in records(timeline, GatewayRequest)
        if each.model == "plain" and each.request_id
    }
    protocols = {name.rpartition("-")[2]: each.protocol for name, each in requests.items()}
    assert protocols == {"http": "http", "grpc": "grpc", "stream": "stream"}
    batches = records(timeline, BatchRecord)
    executions = records(timeline, ExecutionRecord)
    for request in requests.values():
        [(batch, member)] = [
            (batch, member)
            for batch in batches
            for member in batch.members
            if member.number == request.number
        ]
        [execution] = [
            each
            for each in executions
            if (each.instance, each.number) == (batch.instance, batch.number)
        ]
        assert batch.executor in {s.name for s in timeline.services if s.kind == "executor"}
        assert request.status == 0
        times = (
            request.received_ns,
            member.received_ns,
            member.enqueued_ns,
            batch.sent_ns,
            execution.received_ns,
            execution.input_ns,
            execution.infer_ns,
            execution.output_ns,
        )
        assert list(times) == sorted(times)
        # The reply is read while its writer returns from the call.
        assert execution.output_ns <= execution.written_ns
        assert execution.output_ns <= batch.finished_ns <= request.ended_ns
        assert batch.size == execution.size == 1
        assert execution.bytes_in > 16 < execution.bytes_out


def test_a_delay_is_a_wait(it: Mesh) -> None:
    send(it, "batched")
    waits = [each for each in records(fetch(it), Wait) if each.model == "batched"]
    assert {each.reason for each in waits} == {DELAY}
    assert len(waits) == 3
    for each in waits:
        # Timers come late, never early.
        assert each.to_ns - each.from_ns > DELAY_MS * 900_000
        assert each.requests == 1


def test_requests_without_an_execution(it: Mesh) -> None:
    def hits() -> list[tuple[str, int]]:
        """After another request."""
        with httpclient.InferenceServerClient(it.http) as client:
            client.infer("kept", [tensor(httpclient)])
        ended = records(fetch(it), EndedRequest)
        return [(each.outcome, each.status) for each in ended if each.model == "kept"]

    until(hits, "a response from the cache")
    assert set(hits()) == {("cache hit", 0)}
    with (
        httpclient.InferenceServerClient(it.http) as client,
        pytest.raises(Exception, match="unknown model"),
    ):
        client.infer("missing", [tensor(httpclient)], request_id="refused")
    timeline = fetch(it)
    [refused] = [each for each in records(timeline, GatewayRequest) if each.request_id == "refused"]
    assert refused.status != 0
    assert refused.model == "missing"


def test_only_the_seconds_that_are_asked_for(it: Mesh) -> None:
    send(it, "plain")
    assert records(fetch(it), GatewayRequest)
    assert not records(fetch(it, 1e-6), GatewayRequest)
    status, body = it.get(f"{PATH}?last=ever")
    assert status == 400
    assert b"number of seconds" in body


def test_a_lost_executor(tmp_path: Path) -> None:
    save_echo(tmp_path / "models", "plain")
    with running(tmp_path / "models", tmp_path / "log", "--join=none") as mesh:
        send(mesh, "plain")
        mesh.kill(EXECUTOR)
        until(lambda: "executor lost" in whats(mesh), "the executor's end")
        until(lambda: whats(mesh).count("executor joined") > 1, "the next executor")
        found = whats(mesh)
        assert "instance lost" in found
        assert found.count("executor joined") == 2
        timeline = fetch(mesh)
        # Its records went with it; those of the scheduler are there.
        assert not [each for each in records(timeline, ExecutionRecord) if each.model == "plain"]
        assert len(records(timeline, BatchRecord)) == 3


def whats(mesh: Mesh) -> list[str]:
    """The scheduler's events."""
    schedulers = [each for each in fetch(mesh).services if each.kind == "scheduler"]
    return [
        each.what for service in schedulers for each in service.records if isinstance(each, Event)
    ]


def test_several_gateways_and_schedulers(tmp_path: Path) -> None:
    for number in range(4):
        save_echo(tmp_path / "models", f"plain{number}")
    flags = ("--gateways=2", "--schedulers=2")
    with running(tmp_path / "models", tmp_path / "log", *flags) as mesh:
        for number in range(4):
            send(mesh, f"plain{number}")
        timeline = fetch(mesh)
        assert timeline.missing == []
        kinds = sorted(each.kind for each in timeline.services)
        assert kinds == ["executor", "gateway", "gateway", "scheduler", "scheduler"]
        assert len({each.name for each in timeline.services}) == 5
        assert len({each.number for each in records(timeline, GatewayRequest)}) == 12
        assert len(records(timeline, ExecutionRecord)) == 12
        members = [
            each.number for batch in records(timeline, BatchRecord) for each in batch.members
        ]
        assert sorted(members) == sorted(
            each.number for each in records(timeline, GatewayRequest) if each.status == 0
        )


def test_an_executor_that_hangs_is_missing(tmp_path: Path) -> None:
    save_echo(tmp_path / "models", "plain")
    with running(tmp_path / "models", tmp_path / "log", "--join=none") as mesh:
        send(mesh, "plain")
        [pid] = mesh.children(EXECUTOR)
        waiting = threading.Thread(target=send, args=(mesh, "plain"))
        os.kill(pid, signal.SIGSTOP)
        try:
            waiting.start()
            pending = "nereid_gateway_pending_requests 1"
            until(lambda: pending in mesh.metrics(), "the request is pending")
            timeline = fetch(mesh)
        finally:
            os.kill(pid, signal.SIGCONT)
            waiting.join()
        [missing] = timeline.missing
        assert "it has sent nothing" in missing
        *_, last = sorted(records(timeline, BatchRecord), key=lambda each: each.sent_ns)
        assert [each.finished_ns for each in records(timeline, BatchRecord)].count(0) == 1
        assert (last.finished_ns, last.model, last.executor) == (0, "plain", "executor-0")
        assert len(last.members) == 1


def test_nothing_is_recorded_where_it_is_turned_off(tmp_path: Path) -> None:
    save_echo(tmp_path / "models", "plain")
    with running(tmp_path / "models", tmp_path / "log", "--timeline-seconds=0") as mesh:
        send(mesh, "plain")
        status, body = mesh.get(PATH)
        assert status == 404
        assert b"--timeline-seconds" in body
