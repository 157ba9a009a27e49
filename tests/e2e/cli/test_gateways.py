"""Several gateways behind one set of ports: clients and operators see one server."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running, until
from tests.support.peers.shared_memory import shared_memory_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

_GATEWAY = "nereid_gateway"
_PROTOCOLS = ("http", "grpc")
X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def mesh(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    flags = ("--gateways=2", "--allow-client-shm", "--model-control-mode=explicit")
    loaded = [f"--load-model={name}" for name in ("doubler", "identity_fp32")]
    with running(repository, log, *flags, *loaded) as started:
        yield started


def connections(mesh: Mesh, kind: str) -> list[int]:
    """How many each gateway has open."""
    line = rf'nereid_gateway_{kind}_connections{{gateway="\d"}} (\d+)'
    return [int(text) for text in re.findall(line, mesh.metrics())]


@contextlib.contextmanager
def spread_clients(mesh: Mesh, protocol: str) -> Iterator[list[Any]]:
    """Clients with a connection each, some at either gateway."""
    module: Any = getattr(tritonclient, protocol)
    with contextlib.ExitStack() as stack:
        # Otherwise channels to one address share a connection.
        own = (
            {"channel_args": [("grpc.use_local_subchannel_pool", 1)]} if protocol == "grpc" else {}
        )
        clients: list[Any] = []
        # On a busy machine a gateway may be too slow to accept its share of the first few.
        while len(clients) < 8 or min(connections(mesh, protocol)) < 2:
            assert len(clients) < 40, connections(mesh, protocol)
            client = module.InferenceServerClient(getattr(mesh, protocol), **own)
            clients.append(stack.enter_context(client))
            assert client.is_server_live()
        yield clients


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_regions_belong_to_all_gateways(mesh: Mesh, protocol: str) -> None:
    module: Any = getattr(tritonclient, protocol)
    tensor = module.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_shared_memory("in", X.nbytes)
    output = module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("out", X.nbytes)
    with shared_memory_objects() as objects, spread_clients(mesh, protocol) as clients:
        first, *others = clients
        source, target = objects.make(X.tobytes()), objects.make(bytes(X.nbytes))
        first.register_system_shared_memory("in", source, X.nbytes)
        first.register_system_shared_memory("out", target, X.nbytes)
        # A client may do this as soon as both sides have it.
        objects.path(source).unlink()
        for client in others:
            objects.path(target).write_bytes(bytes(X.nbytes))
            client.infer("identity_fp32", [tensor], outputs=[output])
            assert objects.read(target) == X.tobytes()
            status = client.get_system_shared_memory_status()
            names = [each["name"] for each in status] if protocol == "http" else [*status.regions]
            assert sorted(names) == ["in", "out"]
            with pytest.raises(InferenceServerException, match="'in' already in manager"):
                client.register_system_shared_memory("in", target, X.nbytes)
        others[0].unregister_system_shared_memory("in")
        for client in clients:
            with pytest.raises(InferenceServerException, match="memory region: 'in'"):
                client.infer("identity_fp32", [tensor], outputs=[output])
        others[-1].unregister_system_shared_memory()
        for client in clients:
            with pytest.raises(InferenceServerException, match="memory region: 'out'"):
                client.get_system_shared_memory_status("out")


def test_a_region_is_in_use_wherever_a_request_names_it(mesh: Mesh) -> None:
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_shared_memory("busy", X.nbytes)
    done = threading.Event()
    with shared_memory_objects() as objects, spread_clients(mesh, "grpc") as clients:
        key = objects.make(X.tobytes())
        clients[0].register_system_shared_memory("busy", key, X.nbytes)
        with mesh.held("nereid_executor"):
            clients[0].async_infer("identity_fp32", [tensor], lambda **_: done.set())
            until(lambda: in_flight(mesh) == 1, "the request to be in flight")
            for client in clients:
                client.unregister_system_shared_memory("busy")
                assert [*client.get_system_shared_memory_status().regions] == ["busy"]
        assert done.wait(20)
        for client in clients:
            assert not client.get_system_shared_memory_status().regions


def in_flight(mesh: Mesh) -> int:
    return sum(map(int, re.findall(r"nereid_link_pending_requests\{.*\} (\d+)", mesh.metrics())))


def test_scrapes_agree_and_counters_only_grow(mesh: Mesh) -> None:
    series = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
    last: dict[str, float] = {}
    names: set[str] = set()
    with spread_clients(mesh, "http") as clients:
        for client in clients:
            client.get_inference_statistics("doubler")
        for _ in range(20):
            page = mesh.metrics()
            found = series.findall(page)
            assert len({name for name, _ in found}) == len(found), "a series is there twice"
            values = {name: float(text) for name, text in found}
            assert not names or names == values.keys()
            names = set(values)
            for name, value in values.items():
                if re.match(r"\w+(_total|_count|_success|_failure)\b", name):
                    assert value >= last.get(name, 0), name
            last = values
    heads = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(set(heads)) == len(heads)
    for each in ("nereid_gateway_linked", "process_resident_memory_bytes"):
        assert {f'{each}{{gateway="0"}}', f'{each}{{gateway="1"}}'} <= names


def test_a_model_is_ready_everywhere_once_it_is_loaded(mesh: Mesh) -> None:
    tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"x"]], np.object_))
    with spread_clients(mesh, "http") as clients:
        clients[0].load_model("identity_bytes")
        for client in clients:
            client.infer("identity_bytes", [tensor])
            assert client.is_model_ready("identity_bytes")
        clients[-1].unload_model("identity_bytes")
        for client in clients:
            states = {
                each["name"]: each.get("state") for each in client.get_model_repository_index()
            }
            assert states["identity_bytes"] in ("UNLOADING", "UNAVAILABLE")


def test_settings_are_those_of_all_gateways(mesh: Mesh) -> None:
    with spread_clients(mesh, "grpc") as clients:
        clients[0].update_log_settings({"log_verbose_level": 3})
        assert {
            client.get_log_settings(as_json=True)["settings"]["log_verbose_level"]["uint32_param"]
            for client in clients
        } == {3}
        clients[-1].update_log_settings({"log_verbose_level": 0})


def test_a_killed_gateway_breaks_its_own_connections_alone(mesh: Mesh) -> None:
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with contextlib.ExitStack() as stack:
        key = stack.enter_context(shared_memory_objects()).make(X.tobytes())
        with tritonclient.http.InferenceServerClient(mesh.http) as client:
            client.register_system_shared_memory("kept", key, X.nbytes)
        until(lambda: not any(connections(mesh, "http")), "earlier clients to be gone")
        sockets: list[socket.socket] = []
        while len(sockets) < 8 or min(connections(mesh, "http")) < 2:
            assert len(sockets) < 40, connections(mesh, "http")
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", mesh.http_port)))
            sock.settimeout(20)
            sock.sendall(request)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sockets.append(sock)
        before = connections(mesh, "http")
        killed = mesh.kill(_GATEWAY)
        broken = 0
        for sock in sockets:
            with contextlib.suppress(ConnectionError):
                sock.sendall(request)
                if sock.recv(4096).startswith(b"HTTP/1.1 200"):
                    continue
            broken += 1
        assert broken in before
        assert 0 < broken < len(sockets)
        # New connections go to the other one meanwhile.
        for _ in range(20):
            assert mesh.get("/v2/health/live")[0] == http.client.OK
        until(lambda: len(set(mesh.children(_GATEWAY)) - {killed}) == 2, "its restart")
        until(lambda: len(connections(mesh, "http")) == 2, "both to be on the page")
    with spread_clients(mesh, "http") as clients:
        for client in clients:
            assert [each["name"] for each in client.get_system_shared_memory_status()] == ["kept"]
        client.unregister_system_shared_memory()


def test_new_connections_pass_by_a_gateway_that_hangs(mesh: Mesh) -> None:
    hung = mesh.children(_GATEWAY)[0]
    os.kill(hung, signal.SIGSTOP)
    try:
        for _ in range(20):
            assert mesh.get("/v2/health/live")[0] == http.client.OK
    finally:
        os.kill(hung, signal.SIGCONT)
    with spread_clients(mesh, "http"):
        pass
