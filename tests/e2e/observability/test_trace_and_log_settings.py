"""The trace and logging extensions through the real mesh, by NVIDIA's clients."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import make_repository
from tests.support.peers.otlp_receiver import Receiver, Tree, receiver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def otlp() -> Iterator[Receiver]:
    with receiver() as there:
        yield there


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, otlp: Receiver) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("settings")
    flags = [
        "--trace-config=mode=opentelemetry",
        "--trace-config=rate=1",
        f"--trace-config=opentelemetry,url={otlp.url}",
        "--trace-config=opentelemetry,bsp_schedule_delay=100",
    ]
    with running(make_repository(root / "models"), root / "log", *flags) as started:
        yield started


def infer(mesh: Mesh, model: str, request_id: str) -> None:
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        tensor = grpcclient.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 8), np.float32))
        client.infer(model, [tensor], request_id=request_id)


@pytest.mark.parametrize("module", [httpclient, grpcclient])
def test_a_model_is_traced_for_as_long_as_a_client_wants_it(
    mesh: Mesh, otlp: Receiver, module: Any
) -> None:
    name = module.__name__
    with module.InferenceServerClient(mesh.http if module is httpclient else mesh.grpc) as client:
        as_json = {} if module is httpclient else {"as_json": True}

        def shown(reply: Any) -> tuple[Any, Any]:
            if module is httpclient:
                return reply["trace_level"], reply["trace_count"]
            settings = reply["settings"]
            return settings["trace_level"]["value"], settings["trace_count"]["value"][0]

        assert shown(client.get_trace_settings("doubler", **as_json)) == (["OFF"], "-1")
        infer(mesh, "doubler", f"{name}-before")
        on = {"trace_level": ["TIMESTAMPS"], "trace_count": "1"}
        reply = client.update_trace_settings("doubler", on, **as_json)
        assert shown(reply) == (["TIMESTAMPS"], "1")
        infer(mesh, "identity_fp32", f"{name}-other")
        infer(mesh, "doubler", f"{name}-first")
        infer(mesh, "doubler", f"{name}-second")
        cleared = {"trace_level": None, "trace_count": None}
        reply = client.update_trace_settings("doubler", cleared, **as_json)
        assert shown(reply) == (["OFF"], "-1")
        infer(mesh, "doubler", f"{name}-after")
        with pytest.raises(InferenceServerException, match="unknown model : nope"):
            client.get_trace_settings("nope")

    def traced(trees: dict[str, Tree]) -> set[str]:
        ids = {str(root.attributes.get("triton.request_id"))
               for tree in trees.values() for root in tree.roots()}  # fmt: skip
        return {each for each in ids if each.startswith(name)}

    # Spans leave in their order: had others been traced before, they would be here by now.
    assert traced(otlp.wait(traced)) == {f"{name}-first"}


def test_what_is_logged_and_how_follows_a_client(mesh: Mesh) -> None:
    def services() -> set[str]:
        """Who has written lines in the form that was asked for."""
        reported = set()
        for line in mesh.log.read_text().splitlines():
            if line.startswith('{"time"'):
                reported.add(json.loads(line)["service"])
        return reported

    with httpclient.InferenceServerClient(mesh.http) as client:
        assert client.get_log_settings()["log_format"] == "default"
        assert not services()
        reply = client.update_log_settings({"log_format": "json", "log_verbose_level": 1})
        assert (reply["log_format"], reply["log_verbose_level"]) == ("json", 1)
        # Both processes log an executor that leaves.
        os.kill(mesh.children("nereid_executor")[0], signal.SIGTERM)
        until(lambda: len(services()) > 1, "lines of all services")
        assert client.update_log_settings({"log_format": "text"})["log_format"] == "default"
    with grpcclient.InferenceServerClient(mesh.grpc) as client:
        reply = client.update_log_settings({"log_info": False}, as_json=True)
        assert reply["settings"]["log_info"] == {"bool_param": False}
        with pytest.raises(InferenceServerException, match="log file location can not be updated"):
            client.update_log_settings({"log_file": "x"})
