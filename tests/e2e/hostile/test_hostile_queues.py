"""Clients that fill a model's queue: who is refused, and who has to wait."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, running, until

pytestmark = pytest.mark.slow

_CONFIG = """
backend: "python"
max_batch_size: 16
dynamic_batching { }
parameters { key: "target_p99_us" value { string_value: "100000" } }
input { name: "INPUT0" data_type: TYPE_FP32 dims: [1] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }
instance_group [{ count: 1 kind: KIND_CPU }]
"""
# 5 ms for a batch and 2 ms for each row.
_MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        time.sleep(0.005 + 0.002 * sum(map(len, inputs)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in inputs]
"""
_HONEST, _HOSTILE = "127.0.0.3", "127.0.0.2"
# Its requests come alone: one is far below its share.
_HONEST_REQUESTS = 40
_OK, _UNAVAILABLE = 200, 503


class Client:
    """A client on one connection from an address, which counts the statuses of its responses."""

    def __init__(self, mesh: Mesh, address: str) -> None:
        host, _, port = mesh.http.rpartition(":")
        self._connection = http.client.HTTPConnection(
            host, int(port), timeout=30, source_address=(address, 0)
        )
        self.statuses: Counter[int] = Counter()
        self.longest_s = 0.0

    def infer(self, *values: float) -> None:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [len(values), 1], "data": values}
        begin = time.monotonic()
        self._connection.request(
            "POST", "/v2/models/timely/infer", json.dumps({"inputs": [tensor]})
        )
        response = self._connection.getresponse()
        document = json.loads(response.read())
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        self.statuses[response.status] += 1
        if response.status == _OK:
            assert document["outputs"][0]["data"] == [*values]

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("rows", [1, 16])
def test_a_latency_target_refuses_the_client_that_fills_the_queue(
    tmp_path: Path, rows: int
) -> None:
    folder = tmp_path / "models" / "timely" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(_MODEL)
    (folder.parent / "config.pbtxt").write_text(_CONFIG)
    ended = threading.Event()
    with running(tmp_path / "models", tmp_path / "log") as mesh:
        honest = Client(mesh, _HONEST)
        hostile = [Client(mesh, _HOSTILE) for _ in range(48)]

        def flood(client: Client) -> None:
            while not ended.is_set():
                client.infer(*[1.5] * rows)

        threads = [threading.Thread(target=flood, args=(each,)) for each in hostile]
        for thread in threads:
            thread.start()
        try:
            until(
                lambda: sum(each.statuses[_UNAVAILABLE] for each in hostile) > 100,
                "the first refusals",
            )
            for number in range(_HONEST_REQUESTS):
                honest.infer(float(number))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            for client in (honest, *hostile):
                client.close()
        assert honest.statuses == {_OK: _HONEST_REQUESTS}
        refused = sum((each.statuses for each in hostile), Counter[int]())
        assert refused[_UNAVAILABLE] > 100
        assert set(refused) == {_OK, _UNAVAILABLE}
        # One batch that executes, one that waits at the instance, and its own: 0.1 s on a machine
        # that is not busy with other tests.
        assert honest.longest_s < 5
