"""A process of the mesh is replaced under load, and clients that retry once notice a delay."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import ask, free_port, running, until
from tests.support.mesh.separate_services import ready, service
from tests.support.models.e2e_models import save_multiplier, save_scaler

pytestmark = pytest.mark.slow

_RESPONSE_S = 60.0
_RETRY_S = 0.05


class Load:
    """NVIDIA's clients, half of them over each protocol, that send one request after the other."""

    def __init__(self, http: str, grpc: str, clients: int = 8) -> None:
        self._stop = threading.Event()
        # "right", or how a call has failed although it was tried twice.
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        self._lock = threading.Lock()
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
                failures.append(str(error))
                # The library may not know yet that the connection is lost.
                time.sleep(_RETRY_S)
            else:
                with self._lock:
                    self.retries += len(failures)
                assert (result.as_numpy("OUTPUT0") == 2 * array).all()
                return "right"
        return f"twice: {failures}"


@contextlib.contextmanager
def busy(http: str) -> Iterator[None]:
    """Requests that take a tenth of a second meanwhile, one after the other: a service that drains
    has something to wait for.
    """
    stop = threading.Event()

    def run() -> None:
        body = {"inputs": [{"name": "I", "datatype": "INT64", "shape": [1], "data": [2]}]}
        while not stop.is_set():
            with contextlib.suppress(OSError, HTTPException):
                outcomes.add(ask(http, "/v2/models/slow/infer", "POST", json.dumps(body).encode()))

    outcomes: set[tuple[int, bytes]] = set()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert {status for status, _ in outcomes} == {200}, outcomes


def _is_lost(error: InferenceServerException) -> bool:
    """Whether the connection was lost, rather than the request refused by the mesh."""
    unavailable = error.status() == "StatusCode.UNAVAILABLE"
    return unavailable and not re.search("stopping|shutting down|reached", str(error))


@pytest.mark.parametrize(
    ("flags", "module"),
    [
        ((), "nereid_mesh.serve.joined"),
        pytest.param(("--join=none",), "nereid_gateway", marks=pytest.mark.nightly),
        pytest.param(("--gateways=2",), "nereid_gateway", marks=pytest.mark.nightly),
        pytest.param(("--standby",), "nereid_mesh.serve.joined", marks=pytest.mark.nightly),
    ],
    ids=["joined", "gateway", "gateways", "standby"],
)
def test_a_process_that_serves_clients_is_killed_and_no_call_fails(
    repository: Path, tmp_path: Path, flags: tuple[str, ...], module: str
) -> None:
    with (
        running(repository, tmp_path / "log", *flags) as mesh,
        Load(mesh.http, mesh.grpc) as load,
    ):
        load.await_more()
        # No call may be in flight at the moment of a kill, as new connections wait for the next
        # process to accept them.
        for _ in range(5):
            if load.retries:
                break
            until(lambda: mesh.children(module), "the process")
            serving = mesh.children(module)
            if "--standby" in flags:
                until(lambda: len(mesh.children(module)) == 2, "the standby")
            for pid in serving:
                os.kill(pid, signal.SIGKILL)
            load.await_more()
    assert set(load.outcomes) == {"right"}, load.outcomes
    assert load.retries


_EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--schedulers=2",), marks=pytest.mark.nightly)], ids=["one", "two"]
)
def test_executors_are_drained_by_calls_and_no_call_fails(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    save_scaler(tmp_path / "models", "doubler", 2, "max_batch_size: 16\ndynamic_batching { }\n")
    save_multiplier(tmp_path / "models", "slow", 3, "instance_group [{ count: 1 }]")
    log = tmp_path / "log"
    with (
        running(tmp_path / "models", log, *flags, *_EXPLICIT, executors=2) as mesh,
        Load(mesh.http, mesh.grpc) as load,
        busy(mesh.http),
    ):
        first = mesh.children("nereid_executor")
        for number in range(2):
            load.await_more()
            path = f"/v2/nereid/executors/executor-{number}/drain"
            # The second is the last one of its models until the first is back.
            until(lambda: mesh.get(path, "POST") == (200, b""), "its drain")  # noqa: B023
            ended = f"nereid_executor {number} ended (exit code 0)"
            until(lambda: ended in log.read_text(), "its end")  # noqa: B023
            load.await_more()
        until(
            lambda: len(set(mesh.children("nereid_executor")) - set(first)) == 2,
            "both anew",
        )
        load.await_more()
        assert mesh.get("/v2/nereid/executors/none/drain", "POST")[0] == 404
    assert set(load.outcomes) == {"right"}, load.outcomes
    assert not load.retries
    assert "was lost" not in log.read_text()


class SeparateServices:
    """The services of a mesh, each started by hand; they can be replaced one by one."""

    # As on a shutdown: gateways wait for responses, schedulers for executors.
    _ORDER = ("gateway", "scheduler", "executor", "cache")

    def __init__(self, repository: Path, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, contextlib.AbstractContextManager[Any]] = {}
        self._starts = itertools.count()
        scheduler, cache = (f"127.0.0.1:{free_port()}" for _ in range(2))
        dial = f"--scheduler-address={scheduler}"
        self.http_port, grpc_port = free_port(), free_port()
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{grpc_port}"
        edges = (f"--http-port={self.http_port}", f"--grpc-port={grpc_port}")
        # Two gateways are one server for their clients.
        shared = ("--reuse-http-port=true", "--reuse-grpc-port=true", "--allow-metrics=false")
        self._flags = {
            "cache": (f"--cache-listen={cache}", "--cache-config=local,size=1048576"),
            "scheduler": (dial, f"--model-repository={repository}", f"--cache-address={cache}"),
            "executor": (dial,),
            "gateway": (dial, *edges, *shared),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for kind in self._ORDER:
            for name in [each for each in self._running if each.startswith(kind)]:
                self.end(name)

    def start(self, name: str, awaited: str, tree: Path | None = None) -> None:
        """Start a service, and wait for what its log says. Names begin with what they are.

        tree: of another release's source.
        """
        kind = name.partition("-")[0]
        number = next(self._starts)
        flags = (f"--name={name}-{number}",) if kind == "executor" else ()
        log = self._directory / f"{number}-{name}.log"
        started = service(kind, log, *self._flags[kind], *flags, tree=tree)
        started.__enter__()
        self._running[name] = started
        until(lambda: awaited in log.read_text(), f"{awaited} in {log}")

    def end(self, name: str) -> None:
        """SIGTERM, and wait; it has to end well."""
        self._running.pop(name).__exit__(None, None, None)


# What says that each serves.
_SERVICES = {
    "cache": "the cache",
    "scheduler": "listening at",
    "executor-0": "",
    "executor-1": "",
    "gateway-0": "serving HTTP",
    "gateway-1": "serving HTTP",
}


@pytest.mark.parametrize(
    "replaced",
    [
        ("scheduler", "executor-0", "gateway-0"),
        pytest.param((*_SERVICES, *_SERVICES), marks=pytest.mark.nightly),
    ],
    ids=["once", "all-twice"],
)
def test_services_are_replaced_under_load_and_no_call_fails(
    tmp_path: Path, replaced: tuple[str, ...]
) -> None:
    config = "max_batch_size: 16\ndynamic_batching { }\nresponse_cache { enable: true }\n"
    save_scaler(tmp_path / "models", "doubler", 2, config)
    save_multiplier(tmp_path / "models", "slow", 3, "instance_group [{ count: 1 }]")
    with SeparateServices(tmp_path / "models", tmp_path) as mesh:
        for name, awaited in _SERVICES.items():
            mesh.start(name, awaited)
        until(lambda: ready(mesh.http_port, "doubler"), "the model")
        with Load(mesh.http, mesh.grpc) as load, busy(mesh.http):
            for name in replaced:
                load.await_more()
                mesh.end(name)
                mesh.start(name, _SERVICES[name])
            load.await_more()
        assert set(load.outcomes) == {"right"}, load.outcomes


@pytest.mark.nightly
def test_two_releases_serve_side_by_side(tmp_path: Path) -> None:
    """Each service is upgraded while the others are still of the last release, and back."""
    directory = os.environ.get("NEREID_RELEASED_TREE")
    if directory is None:
        pytest.skip("NEREID_RELEASED_TREE names no source tree of the last release")
    config = "max_batch_size: 16\ndynamic_batching { }\nresponse_cache { enable: true }\n"
    save_scaler(tmp_path / "models", "doubler", 2, config)
    with SeparateServices(tmp_path / "models", tmp_path) as mesh:
        for name, awaited in _SERVICES.items():
            mesh.start(name, awaited, Path(directory))
        until(lambda: ready(mesh.http_port, "doubler"), "the model")
        with Load(mesh.http, mesh.grpc) as load:
            for tree in (None, Path(directory)):
                for name, awaited in _SERVICES.items():
                    load.await_more()
                    mesh.end(name)
                    mesh.start(name, awaited, tree)
            load.await_more()
        # The last release refused what came while it shut down.
        refusals = re.compile("Server is stopping|GRPC server is shutting down")
        assert not [each for each in load.outcomes if each != "right" and not refusals.search(each)]
