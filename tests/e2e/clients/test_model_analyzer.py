"""What NVIDIA's model_analyzer asks of a server that it does not start itself, in its order.

It loads a model, reads its configuration, and loads it again and again with another number of
instances, batch size and batching; each of these must take effect, or it measures the same thing
under many names.
"""

import json
import queue
from collections.abc import Iterator
from http import HTTPStatus
from itertools import product
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from tritonclient.grpc import InferenceServerClient, InferInput, model_config_pb2
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, ask, running, until
from tests.support.models.e2e_models import save_scaler

pytestmark = pytest.mark.slow

MODEL = "scaler"
REQUESTS = 6
# A long delay would show, were it not overridden.
CONFIG = "max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 5000000 }\n"


@pytest.fixture(
    scope="module", params=["nereid", pytest.param("grpcio", marks=pytest.mark.nightly)]
)
def mesh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("analyzed")
    save_scaler(root / "models", MODEL, 2, CONFIG)
    flags = f"--grpc-engine={request.param}", "--model-control-mode=explicit"
    with running(root / "models", root / "log", *flags) as mesh:
        yield mesh


def tensor(rows: int) -> InferInput:
    made = InferInput("INPUT0", [rows, 8], "FP32")
    made.set_data_from_numpy(np.ones((rows, 8), np.float32))
    return made


def config_of(client: InferenceServerClient) -> dict[str, Any]:
    """As model_analyzer reads it: a field that NVIDIA's message has not would be refused."""
    reported = client.get_model_config(MODEL, as_json=True)["config"]
    message = ParseDict(reported, model_config_pb2.ModelConfig())
    config: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return config


def executions(client: InferenceServerClient) -> int:
    (stats,) = client.get_inference_statistics(MODEL).model_stats
    return int(stats.execution_count)


def sample(mesh: Mesh, name: str) -> int:
    """The sum of a metric's samples, of a page that must be ASCII."""
    status, page = ask(f"127.0.0.1:{mesh.metrics_port}", "/metrics")
    assert status == HTTPStatus.OK
    lines = [each for each in page.decode("ascii").splitlines() if each.startswith(name)]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def executed_together(mesh: Mesh, client: InferenceServerClient) -> int:
    """How many executions it takes to serve requests that came while the instances were busy."""
    got: queue.Queue[Any] = queue.Queue()
    before = executions(client)
    with mesh.held("nereid_executor"):
        for _ in range(REQUESTS):
            client.async_infer(MODEL, [tensor(1)], lambda result, error: got.put((result, error)))
        until(
            lambda: sample(mesh, "nereid_gateway_pending_requests") == REQUESTS, "all to be there"
        )
    for _ in range(REQUESTS):
        result, error = got.get(timeout=20)
        assert error is None
        assert (result.as_numpy("OUTPUT0") == 2).all()
    return executions(client) - before


def test_its_calls_in_its_order(mesh: Mesh) -> None:
    with InferenceServerClient(mesh.grpc) as client:
        assert client.is_server_ready()
        index = client.get_model_repository_index(as_json=True)["models"]
        assert [(each["name"], client.is_model_ready(each["name"])) for each in index] == [
            (MODEL, False)
        ]
        client.load_model(MODEL)
        base = config_of(client)
        assert base["name"] == MODEL
        assert len(base["input"]) == len(base["output"]) == 1
        client.unload_model(MODEL)
        del base["dynamic_batching"]
        for instances, largest in product((1, 2), (1, 2, 8)):
            group = [{"count": instances, "kind": "KIND_CPU"}]
            variant = base | {"instance_group": group, "max_batch_size": largest}
            _check_variant(mesh, client, variant)
            _check_variant(mesh, client, variant | {"dynamic_batching": {}})
        client.unload_model(MODEL)

        def unloaded() -> bool:
            (entry,) = client.get_model_repository_index(as_json=True)["models"]
            return (entry["state"], entry.get("reason")) == ("UNAVAILABLE", "unloaded")

        until(unloaded, "the unload")


def _check_variant(mesh: Mesh, client: InferenceServerClient, variant: dict[str, Any]) -> None:
    # Model Analyzer polls as well: the last variant's instances may still be unloading.
    until(client.is_server_ready, "the server's readiness")
    client.load_model(MODEL, config=json.dumps(variant))
    assert client.is_model_ready(MODEL)
    instances, largest = variant["instance_group"][0]["count"], variant["max_batch_size"]
    reported = config_of(client)
    assert reported["instance_group"][0]["count"] == sample(mesh, "nereid_instances{") == instances
    assert reported["max_batch_size"] == largest
    assert ("dynamic_batching" in reported) is ("dynamic_batching" in variant)
    assert "max_queue_delay_microseconds" not in reported.get("dynamic_batching", {})
    client.infer(MODEL, [tensor(largest)])
    with pytest.raises(InferenceServerException, match=f"batch-size must be <= {largest}"):
        client.infer(MODEL, [tensor(largest + 1)])
    took = executed_together(mesh, client)
    if "dynamic_batching" in variant and largest > 1:
        # Each instance has one at once; what waits behind them goes together.
        assert took < REQUESTS
    else:
        assert took == REQUESTS
