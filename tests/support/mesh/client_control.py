"""Calls of NVIDIA's clients other than inference, to a mesh that allows all of them.

What is refused, and in which words, is in tests/conformance/rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.auth
import tritonclient.http.auth
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import until
from tests.support.mesh.nvidia_clients import Client, connected
from tests.support.mesh.open_mesh import CONFIG, PASSWORD, USER, doubled, index
from tests.support.models.e2e_models import save_scaler
from tests.support.peers.shared_memory import shared_memory_objects

EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]


def refuses(client: Client, text: str, method: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(InferenceServerException, match=text):
        client(method, *args, **kwargs)


def health(client: Client) -> None:
    assert client("is_server_live") is True
    assert client("is_server_ready", headers={"x-any": "thing"}) is True
    for version, ready in (("", True), ("1", True), ("2", False)):
        assert client("is_model_ready", "scaler", version) is ready
    assert client("is_model_ready", "nobody") is False


def server_metadata(client: Client) -> None:
    reported = client.reported("get_server_metadata")
    assert reported == {
        "name": "triton",
        "version": metadata.version("nereid-mesh"),
        "extensions": EXTENSIONS,
    }


def model_metadata(client: Client) -> None:
    # int64 is text in protobuf's JSON.
    shape = [-1, 8] if client.is_http else ["-1", "8"]
    for version in ("", "1"):
        assert client.reported("get_model_metadata", "scaler", version) == {
            "name": "scaler",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape}],
            "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": shape}],
        }


def config_of(client: Client, model: str) -> Any:
    reported = client.reported("get_model_config", model)
    return reported if client.is_http else reported["config"]


def model_config(client: Client) -> None:
    config = config_of(client, "scaler")
    assert (config["name"], config["max_batch_size"]) == ("scaler", 16)
    assert [int(dim) for dim in config["input"][0]["dims"]] == [8]


def repository_index(client: Client) -> None:
    # Beside what earlier clients loaded, which is no longer served.
    ready = {version for version, state in index(client).items() if state == ("READY", "")}
    assert ready == {("scaler", "1"), ("slow", "1")}


def load(client: Client) -> None:
    before = config_of(client, "scaler")
    changed = before | {"max_batch_size": 2, "dynamic_batching": {}}
    client("load_model", "scaler", config=json.dumps(changed))
    assert config_of(client, "scaler")["max_batch_size"] == 2
    assert doubled(client, rows=2) == 2
    client("load_model", "scaler", config=json.dumps(before))
    assert config_of(client, "scaler") == before
    assert doubled(client, rows=16) == 2
    refuses(client, "failed to load 'nobody'", "load_model", "nobody")
    if client.flavour != "http.aio":  # whose files never leave it: bytes are no JSON
        _load_with_files(client, before)
    assert doubled(client) == 2


def _load_with_files(client: Client, config: dict[str, Any]) -> None:
    folder = client.mesh.log.parent / "elsewhere"
    save_scaler(folder, "scaler", 9, CONFIG)
    content = (folder / "scaler" / "1" / "model.onnx").read_bytes()
    files = {"file:3/model.onnx": content}
    client("load_model", "scaler", config=json.dumps(config), files=files)
    assert doubled(client, version="3") == 9
    assert client("is_model_ready", "scaler", "1") is False
    client("load_model", "scaler")


def unloading(client: Client) -> None:
    client("unload_model", "slow", unload_dependents=True)
    until(lambda: index(client)["slow", "1"] == ("UNAVAILABLE", "unloaded"), "the unload")
    assert client("is_model_ready", "slow") is False
    client("load_model", "slow")
    assert client("is_model_ready", "slow") is True


def statistics(client: Client) -> None:
    def counts(*which: str) -> list[int]:
        (stats,) = client.reported("get_inference_statistics", *which)["model_stats"]
        assert (stats["name"], stats["version"]) == ("scaler", "1")
        phases = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        durations = [stats["inference_stats"][phase] for phase in phases]
        assert all(int(each.get("ns", 0)) > 0 for each in durations[:1])
        reported = [stats["inference_count"], *(each["count"] for each in durations)]
        return [int(each) for each in reported]

    doubled(client)
    before = counts("scaler")
    doubled(client, rows=4)
    after = counts("scaler", "1")
    assert [b - a for a, b in zip(before, after, strict=True)] == [4, 1, 1, 1, 1, 1]
    everybody = client.reported("get_inference_statistics")["model_stats"]
    assert [each["name"] for each in everybody] == ["scaler", "slow"]


def flat(client: Client, reported: dict[str, Any]) -> dict[str, Any]:
    """Settings by name; gRPC reports trace settings as lists, others with their type."""
    if client.is_http:
        return reported
    found = {}
    for name, value in reported["settings"].items():
        (plain,) = value.values()
        is_one = isinstance(plain, list) and name != "trace_level"
        found[name] = plain[0] if is_one else plain
    return found


def trace_settings(client: Client) -> None:
    def reported(model: str | None = None) -> dict[str, Any]:
        return flat(client, client.reported("get_trace_settings", model))

    def update(model: str | None, settings: dict[str, Any]) -> dict[str, Any]:
        return flat(client, client.reported("update_trace_settings", model, settings))

    before = reported()
    assert (before["trace_level"], before["trace_rate"]) == (["TIMESTAMPS"], "1")
    assert reported("scaler") == before
    own = update("scaler", {"trace_level": ["OFF"], "trace_rate": "7"})
    assert own == reported("scaler") == before | {"trace_level": ["OFF"], "trace_rate": "7"}
    assert reported() == before
    assert update(None, {"trace_count": "5"}) == reported() == before | {"trace_count": "5"}
    assert reported("scaler")["trace_rate"] == "7"
    assert update("scaler", {"trace_level": None, "trace_rate": None})["trace_rate"] == "1"
    assert update(None, {"trace_count": "-1"}) == before == reported("scaler")
    update(None, {"trace_count": None})


def guard_of(client: Client) -> str:
    """The header that the logging API wants."""
    return "authorization" if client.is_http else "triton-grpc-protocol-authorization"


def credentials(client: Client) -> Any:
    """NVIDIA's plugin for basic authentication; over gRPC the mesh looks for a name of its own."""
    if client.is_http:
        return tritonclient.http.auth.BasicAuth(USER, PASSWORD)
    basic = tritonclient.grpc.auth.BasicAuth(USER, PASSWORD)

    def plugin(request: Any) -> None:
        basic(request)
        request.headers[guard_of(client)] = request.headers["authorization"]

    return plugin


def log_settings(client: Client) -> None:
    token = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    header = guard_of(client)

    def reported(method: str, *args: Any) -> dict[str, Any]:
        return flat(client, client.reported(method, *args, headers={header: token}))

    before = reported("get_log_settings")
    assert before["log_info"] is True
    change = {"log_verbose_level": 1, "log_format": "ISO8601", "log_warning": False}
    assert (
        reported("update_log_settings", change) == before | change == reported("get_log_settings")
    )
    assert reported("update_log_settings", {name: before[name] for name in change}) == before
    restricted = f"is restricted, expecting header '{header}'"
    refuses(client, restricted, "get_log_settings")
    refuses(client, restricted, "update_log_settings", {}, headers={header: "Basic no"})


def plugins(client: Client) -> None:
    restricted = f"is restricted, expecting header '{guard_of(client)}'"
    refuses(client, "No plugin has been registered", "unregister_plugin")
    refuses(client, restricted, "get_log_settings")
    mine = credentials(client)
    client("register_plugin", mine)
    assert client("plugin") is mine
    refuses(client, "already registered", "register_plugin", mine)
    assert flat(client, client.reported("get_log_settings"))["log_error"] is True
    assert doubled(client) == 2
    client("unregister_plugin")
    assert client("plugin") is None
    refuses(client, restricted, "get_log_settings")


def regions(client: Client, kind: str, *which: str) -> list[dict[str, Any]]:
    reported = client.reported(f"get_{kind}_shared_memory_status", *which)
    found = reported if client.is_http else list(reported.get("regions", {}).values())
    numbers = {"offset", "byte_size", "device_id"}
    whole = [{"offset": 0} | each for each in found]
    return [{k: int(v) if k in numbers else v for k, v in each.items()} for each in whole]


def system_shared_memory(client: Client) -> None:
    ones, page = np.ones((2, 8), np.float32), 4096
    with shared_memory_objects() as objects:
        source = objects.make(bytes(page) + ones.tobytes())
        target = objects.make(bytes(ones.nbytes))
        client("register_system_shared_memory", "in", source, ones.nbytes, offset=page)
        client("register_system_shared_memory", "out", target, ones.nbytes)
        rows = {
            "in": {"name": "in", "key": source, "offset": page, "byte_size": ones.nbytes},
            "out": {"name": "out", "key": target, "offset": 0, "byte_size": ones.nbytes},
        }
        reported = regions(client, "system")
        assert sorted(reported, key=lambda row: str(row["name"])) == list(rows.values())
        assert regions(client, "system", "in") == [rows["in"]]
        tensor = client.module.InferInput("INPUT0", [2, 8], "FP32")
        tensor.set_shared_memory("in", ones.nbytes)
        output = client.module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("out", ones.nbytes)
        client("infer", "scaler", [tensor], outputs=[output])
        assert objects.read(target) == (2 * ones).tobytes()
        client("unregister_system_shared_memory", "in")
        assert regions(client, "system") == [rows["out"]]
        client("unregister_system_shared_memory")
        assert regions(client, "system") == []


def cuda_shared_memory(client: Client) -> None:
    handle = base64.b64encode(bytes(64)).decode()
    text = "failed to register shared memory region: invalid args"
    refuses(client, text, "register_cuda_shared_memory", "gpu", handle, 0, 64)
    assert regions(client, "cuda") == []
    client("unregister_cuda_shared_memory", "gpu")
    client("unregister_cuda_shared_memory")


def closing(client: Client) -> None:
    with connected(client.mesh, client.flavour) as another:
        assert another("is_server_live")
        another("close")
        with pytest.raises(Exception, match="closed"):
            another("is_server_live")
    client.called |= another.called
    assert client("is_server_live")


# Methods that each check calls.
CONTROL: dict[Callable[[Client], None], tuple[str, ...]] = {
    health: ("is_server_live", "is_server_ready", "is_model_ready"),
    server_metadata: ("get_server_metadata",),
    model_metadata: ("get_model_metadata",),
    model_config: ("get_model_config",),
    repository_index: ("get_model_repository_index",),
    load: ("load_model",),
    unloading: ("unload_model",),
    statistics: ("get_inference_statistics",),
    trace_settings: ("get_trace_settings", "update_trace_settings"),
    log_settings: ("get_log_settings", "update_log_settings"),
    plugins: ("register_plugin", "plugin", "unregister_plugin"),
    system_shared_memory: (
        "register_system_shared_memory",
        "get_system_shared_memory_status",
        "unregister_system_shared_memory",
    ),
    cuda_shared_memory: (
        "register_cuda_shared_memory",
        "get_cuda_shared_memory_status",
        "unregister_cuda_shared_memory",
    ),
    closing: ("close",),
}
