"""A process of the mesh is replaced under load, and clients that retry once notice a delay."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import running, until

pytestmark = pytest.mark.slow

_RESPONSE_S = 60.0


class Load:
    """NVIDIA's clients, half of them over each protocol, that send one request after the other."""

    def __init__(self, http: str, grpc: str, clients: int = 8) -> None:
        self._stop = threading.Event()
        # "right", or how a call has failed although it was tried twice.
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        protocols = (("http", http), ("grpc", grpc)) * (clients // 2)
        self._threads = [
            threading.Thread(target=self._run, args=(each, *where))
            for each, where in enumerate(protocols)
        ]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def await_more(self, calls: int = 200) -> None:
        """Until so many more calls have succeeded."""
        goal = self.outcomes["right"] + calls
        until(lambda: self.outcomes["right"] >= goal, f"{calls} more calls, of {self.outcomes}")

    def _run(self, number: int, protocol: str, address: str) -> None:
        module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
        timeouts = (
            {"connection_timeout": _RESPONSE_S, "network_timeout": _RESPONSE_S}
            if protocol == "http"
            # Otherwise channels to one address share a connection.
            else {"channel_args": [("grpc.use_local_subchannel_pool", 1)]}
        )
        with module.InferenceServerClient(address, **timeouts) as client:
            value = number
            while not self._stop.is_set():
                value = (value + 8) % 1000
                self.outcomes[self._call(module, client, value)] += 1

    def _call(self, module: Any, client: Any, value: int) -> str:
        array = np.full((1, 8), value, np.float32)
        tensor = module.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(array)
        failures = []
        for _ in range(2):
            try:
                result = client.infer("doubler", [tensor])
            except (InferenceServerException, HTTPConnectionClosed, OSError) as error:
                if isinstance(error, InferenceServerException) and not _is_lost(error):
                    return str(error)
                failures.append(f"{error} at {time.monotonic():.3f}")
            else:
                self.retries += len(failures)
                assert (result.as_numpy("OUTPUT0") == 2 * array).all()
                return "right"
        return f"twice: {failures}"


def _is_lost(error: InferenceServerException) -> bool:
    """Whether the connection was lost, rather than the request refused by the mesh."""
    return error.status() == "StatusCode.UNAVAILABLE" and error.debug_details() is not None


@pytest.mark.parametrize(
    ("flags", "module"),
    [
        ((), "nereid.cli.serve.joined"),
        pytest.param(("--join=all",), "nereid.cli.serve.joined", marks=pytest.mark.nightly),
        pytest.param(("--join=none",), "nereid.services.gateway", marks=pytest.mark.nightly),
        pytest.param(("--gateways=2",), "nereid.services.gateway", marks=pytest.mark.nightly),
    ],
    ids=["joined", "with-executor", "gateway", "gateways"],
)
def test_a_process_that_serves_clients_is_killed_and_no_call_fails(
    repository: Path, tmp_path: Path, flags: tuple[str, ...], module: str
) -> None:
    with (
        running(repository, tmp_path / "log", *flags) as mesh,
        Load(mesh.http, mesh.grpc) as load,
    ):
        load.await_more()
        for pid in mesh.children(module):
            os.kill(pid, signal.SIGKILL)
        load.await_more()
    assert set(load.outcomes) == {"right"}, load.outcomes
    assert load.retries


@pytest.mark.nightly
def test_a_process_that_hangs_is_replaced_and_no_call_fails(
    repository: Path, tmp_path: Path
) -> None:
    with (
        running(repository, tmp_path / "log", "--watchdog-timeout-secs=2") as mesh,
        Load(mesh.http, mesh.grpc) as load,
    ):
        for _ in range(3):
            load.await_more()
            (pid,) = mesh.children("nereid.cli.serve.joined")
            os.kill(pid, signal.SIGSTOP)
            until(lambda gone=pid: not Path(f"/proc/{gone}").exists(), "its end")  # type: ignore[misc]
            load.await_more()
    assert set(load.outcomes) == {"right"}, load.outcomes
