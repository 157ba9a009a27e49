"""Each service started alone, over TCP and in the least helpful order: still one mesh."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.support.mesh.mesh import ask, free_port, until
from tests.support.mesh.separate_services import ready, service

pytestmark = pytest.mark.slow


def executions(port: int) -> int:
    _, body = ask(f"127.0.0.1:{port}", "/v2/models/doubler/stats")
    return int(json.loads(body)["model_stats"][0]["execution_count"])


def test_gateways_and_executors_find_a_scheduler_that_comes_last(
    repository: Path, tmp_path: Path
) -> None:
    scheduler = f"127.0.0.1:{free_port()}"
    ports = [(free_port(), free_port()) for _ in range(2)]
    dial = f"--scheduler-address={scheduler}"
    with contextlib.ExitStack() as stack:
        for number in range(2):
            name = f"--name=executor-{number}"
            log = tmp_path / f"executor-{number}"
            stack.enter_context(service("executor", log, dial, name))
        for http_port, grpc_port in ports:
            flags = [dial, f"--http-port={http_port}", f"--grpc-port={grpc_port}"]
            flags.append(f"--metrics-port={free_port()}")
            stack.enter_context(service("gateway", tmp_path / f"gateway-{http_port}", *flags))
        repository_flag = f"--model-repository={repository}"
        log = tmp_path / "scheduler"
        stack.enter_context(service("scheduler", log, dial, repository_flag))
        array = np.ones((2, 8), np.float32)
        for module, urls in (
            (tritonclient.http, [http_port for http_port, _ in ports]),
            (tritonclient.grpc, [grpc_port for _, grpc_port in ports]),
        ):
            for url, (http_port, _) in zip(urls, ports, strict=True):
                until(lambda port=http_port: ready(port, "doubler"), "the model")  # type: ignore[misc]
                tensor = module.InferInput("INPUT0", [2, 8], "FP32")
                tensor.set_data_from_numpy(array)
                with module.InferenceServerClient(f"127.0.0.1:{url}") as client:
                    result = client.infer("doubler", [tensor])
                assert (result.as_numpy("OUTPUT0") == 2 * array).all()
        # Both gateways tell of the one scheduler's four executions.
        assert [executions(http_port) for http_port, _ in ports] == [4, 4]
