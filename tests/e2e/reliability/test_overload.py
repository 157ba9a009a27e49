"""A mesh that is offered more than it can serve: who is refused, and what the refusals say."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from nereid.pb import kserve_pb2
from nereid_explain import command as explain
from tests.support.mesh.mesh import Mesh, running, until

pytestmark = pytest.mark.slow

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_CONFIG = """
backend: "python"
max_batch_size: {largest}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "gate" value {{ string_value: "{gate}" }} }}
{more}
"""
# Executes once the gate, a file, is there.
_SCRIPT = """
import json
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.gate = config["parameters"]["gate"]["string_value"]

    def execute(self, requests):
        while not os.path.exists(self.gate):
            time.sleep(0.01)
        tensors = [pb_utils.get_input_tensor_by_name(each, "INPUT").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", each)]) for each in tensors]
"""
_TARGET = """
dynamic_batching {}
parameters { key: "target_p99_us" value { string_value: "400000" } }
"""
_BOUNDED = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
# What waits for --max-pending-requests=12 alone: 64/73 of it, rounded up.
_ALONE = 11
# Without the server's word a client would wait for minutes before it tries again.
_RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "300s",
                "maxBackoff": "300s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def write_model(
    repository: Path, name: str, gate: Path, more: str = "", *, largest: int = 1
) -> None:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(_SCRIPT)
    (repository / name / "config.pbtxt").write_text(
        _CONFIG.format(gate=gate, more=more, largest=largest)
    )


def tensor(client: Any) -> Any:
    it = client.InferInput("INPUT", [1, 1], "FP32")
    it.set_data_from_numpy(np.ones((1, 1), np.float32))
    return it


def gauge(mesh: Mesh, name: str) -> float:
    """A series of the metrics page, all its labels together."""
    lines = mesh.metrics().splitlines()
    return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(name))


def fill(mesh: Mesh, channel: Any, model: str) -> tuple[list[Any], Any]:
    """Send requests until one is refused: the calls that wait, and the refused one."""
    infer: Any = channel.unary_unary(_INFER)
    before = gauge(mesh, "nereid_gateway_pending_requests")
    waiting: list[Any] = []
    while True:
        call = infer.future(message(model))

        def arrived(call: Any = call) -> bool:
            pending = gauge(mesh, "nereid_gateway_pending_requests") - before
            return call.done() or pending > len(waiting)

        until(arrived, f"a request to {model}")
        if call.done():
            return waiting, call
        waiting.append(call)


def message(model: str) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    return request.SerializeToString()


def refused_over_http(mesh: Mesh, model: str) -> tuple[int, str, str]:
    """Status, Retry-After and error."""
    connection = http.client.HTTPConnection(mesh.http, timeout=30)
    data = {"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    body = json.dumps({"inputs": [data]})
    connection.request("POST", f"/v2/models/{model}/infer", body)
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    connection.close()
    return response.status, response.headers.get("Retry-After", ""), error


def pushback_ms(call: Any) -> int:
    return int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"])


def test_refused_clients_know_when_to_come_back_and_others_are_served(tmp_path: Path) -> None:
    repository, gate, opened = tmp_path / "models", tmp_path / "gate", tmp_path / "opened"
    opened.touch()
    write_model(repository, "bounded", gate, _BOUNDED)
    write_model(repository, "hot", gate)
    write_model(repository, "cold", opened)
    flags = ("--max-pending-requests=12", "--admission=codel")
    with running(repository, tmp_path / "log", *flags) as mesh:
        channel = grpc.insecure_channel(mesh.grpc)
        # One is executed, two are queued: the scheduler refuses.
        waiting, refused = fill(mesh, channel, "bounded")
        assert len(waiting) == 3
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.details() == "[request id: <id_unknown>] Exceeds maximum queue size"
        assert 400 <= pushback_ms(refused) <= 1500
        status, after, error = refused_over_http(mesh, "bounded")
        assert (status, error) == (503, refused.details())
        assert int(after) in (1, 2)
        for client in (grpcclient, httpclient):
            address = mesh.grpc if client is grpcclient else mesh.http
            with (
                client.InferenceServerClient(address) as each,
                pytest.raises(InferenceServerException, match="Exceeds maximum queue size"),
            ):
                each.infer("bounded", [tensor(client)])

        # A client with a retry policy comes back when the refusal says.
        options = [("grpc.service_config", json.dumps(_RETRIES)), ("grpc.enable_retries", 1)]
        with grpc.insecure_channel(mesh.grpc, options) as retrying:
            before = gauge(mesh, "nereid_requests_refused_total")
            infer: Any = retrying.unary_unary(_INFER)
            retried = infer.future(message("bounded"), timeout=60)
            until(
                lambda: gauge(mesh, "nereid_requests_refused_total") > before, "its first refusal"
            )
            assert not retried.done()
            gate.touch()
            assert retried.result()
        assert all(call.result() for call in waiting)
        assert mesh.counts("bounded")["success"] == 4

        # One model may have nearly all of the gateway's pending requests, and never all of them.
        gate.unlink()
        waiting, refused = fill(mesh, channel, "hot")
        assert len(waiting) == _ALONE
        assert refused.details() == f"Exceeds maximum queue size: {_ALONE} requests are pending"
        assert pushback_ms(refused) > 0
        status, after, error = refused_over_http(mesh, "hot")
        assert (status, error) == (503, refused.details())
        assert int(after) >= 1
        with httpclient.InferenceServerClient(mesh.http) as client:
            for _ in range(5):
                assert client.infer("cold", [tensor(httpclient)]).as_numpy("OUTPUT") == [[1]]
        gate.touch()
        assert all(call.result() for call in waiting)
        # Nothing that was refused was executed.
        assert mesh.counts("hot")["success"] == _ALONE
        assert mesh.counts("cold")["success"] == 5

        # Nor is what its client has given up, or what is past its deadline.
        infer = channel.unary_unary(_INFER)
        gate.unlink()
        waiting, _ = fill(mesh, channel, "bounded")
        assert len(waiting) == 3
        waiting.pop().cancel()
        until(lambda: gauge(mesh, "nereid_gateway_pending_requests") == 2, "the cancellation")
        with pytest.raises(grpc.RpcError) as overdue:
            infer(message("bounded"), timeout=1)
        assert overdue.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: gauge(mesh, "nereid_gateway_pending_requests") == 2, "the deadline")
        gate.touch()
        assert all(call.result() for call in waiting)
        assert mesh.counts("bounded")["success"] == 4 + 2
        channel.close()


def explained(
    mesh: Mesh, name: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    """The exit code of `nereid explain`, and its statements by their codes."""
    metrics = f"--metrics-url=127.0.0.1:{mesh.metrics_port}"
    code = explain.main([name, f"--url={mesh.http}", metrics, "--json"])
    statements = json.loads(capsys.readouterr().out)["statements"]
    return code, {each["code"]: each for each in statements}


def test_a_target_refuses_what_would_miss_it_and_says_what_it_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, gate = tmp_path / "models", tmp_path / "gate"
    gate.touch()
    write_model(repository, "held", gate, _TARGET, largest=16)
    unreachable = _TARGET.replace("400000", "1")
    write_model(repository, "hopeless", gate, unreachable, largest=16)
    with running(repository, tmp_path / "log") as mesh, grpc.insecure_channel(mesh.grpc) as channel:
        infer: Any = channel.unary_unary(_INFER)
        code, said = explained(mesh, "held", capsys)
        assert code == 0
        assert "too few executions to decide by" in said["target"]["text"]
        assert (gauge(mesh, "nereid_target_p99_us"), gauge(mesh, "nereid_target_missed")) == (
            400_001,
            0,
        )

        # Batches grow as their times are learnt, however many clients there are.
        def is_learnt() -> bool:
            outcomes = [infer.future(message("held")) for _ in range(64)]
            assert all(
                each.exception() is None or each.code() is grpc.StatusCode.UNAVAILABLE
                for each in outcomes
            )
            return gauge(mesh, 'nereid_target_batch_size{model="held"') > 1

        until(is_learnt, "larger batches")
        assert gauge(mesh, 'nereid_target_batch_size{model="held"') <= 16

        # The model hangs: what comes later cannot be in time, and is refused at once.
        gate.unlink()
        before = gauge(mesh, "nereid_requests_refused_total")
        waiting, refused = fill(mesh, channel, "held")
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.details() == (
            "[request id: <id_unknown>] Request cannot be served within the model's target_p99_us"
            " of 400000"
        )
        assert pushback_ms(refused) > 0
        status, after, error = refused_over_http(mesh, "held")
        assert (status, error) == (503, refused.details())
        assert int(after) >= 1
        assert gauge(mesh, "nereid_requests_refused_total") == before + 2
        gate.touch()
        assert all(call.result() for call in waiting)

        code, said = explained(mesh, "held", capsys)
        assert code == 1
        assert 1 <= said["target"]["figures"]["batch_size"] <= 16
        assert said["target"]["text"].startswith("target_p99_us 400000: batches have at most ")
        assert "target_p99_us say" in said["refused"]["advice"]

        # A target that cannot be held is named, and requests are served as fast as can be.
        for _ in range(3):
            assert infer(message("hopeless"))
        code, said = explained(mesh, "hopeless", capsys)
        assert code == 1
        assert said["target-unreachable"]["problem"]
        assert gauge(mesh, 'nereid_target_reachable{model="hopeless"') == 0
    assert "'hopeless' version 1 cannot hold its target_p99_us=1" in (tmp_path / "log").read_text()
