"""The chart's command lines as processes of one machine, with the chart's certificates and tokens:
they find each other, and the kubelet's probes say so. Only hosts, ports and paths are this test's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.chart.objects import COMPONENT, Container, component, containers, of_kind
from tests.support.chart.pod import Pod, arguments
from tests.support.chart.rendering import Object, render
from tests.support.chart.value_sets import VALUE_SETS
from tests.support.mesh.mesh import ask, free_port, until
from tests.support.mesh.separate_services import service
from tests.support.models.onnx_models import identity, identity_config
from tests.support.peers.redis_server import binaries

_REQUEST: Final = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
).encode()
_IMAGE_PORTS: Final = (8000, 8001, 8003, 8004, 6379)


class Host:
    """Where everything is on this machine."""

    def __init__(self, folder: Path, objects: list[Object]) -> None:
        self._folder = folder
        self._ports = {port: free_port() for port in _IMAGE_PORTS}
        self.metrics = {name: free_port() for name in ("gateway", "scheduler", "executor", "cache")}
        self.http = f"127.0.0.1:{self._ports[8000]}"
        self._containers = {
            component(each.workload): each for each in containers(objects) if not each.is_init
        }
        self._names = {
            each["metadata"]["labels"].get(COMPONENT): each["spec"].get("dnsNames")
            for each in of_kind(objects, "Certificate")
        }

    def pod(self, name: str) -> tuple[Pod, Container]:
        pod = Pod(self._folder / name, self._names.get(name) or ("redis.example",))
        pod.use_token_of(name)
        identity(pod.root / "models/m/1", "FP32", ["n", 2])
        text = str(identity_config("FP32", "2"))
        cached = f"{text}\nresponse_cache {{ enable: true }}"
        (pod.root / "models/m/config.pbtxt").write_text(cached)
        return pod, self._containers[name]

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        pod, container = self.pod(name)
        argv = [self._here(pod.path_here(arg)) for arg in arguments(container.container)]
        argv = [
            f"--metrics-port={self.metrics[name]}" if arg == "--metrics-port=8002" else arg
            for arg in argv
        ]
        # One path for all, as a volume has: executors are told it by the scheduler.
        argv = [re.sub(rf"={pod.root}/models$", f"={self._folder}/models", arg) for arg in argv]
        models = self._folder / "models"
        if not models.exists():
            models.symlink_to(pod.root / "models")
        with service(name, self._folder / f"{name}.log", *argv) as process:
            yield process

    @contextlib.contextmanager
    def redis(self) -> Iterator[None]:
        pod, container = self.pod("redis")
        script = self._here(pod.path_here(container.container["args"][0]))
        folder = pod.root / "data"
        folder.mkdir()
        script = script.replace("--dir /data", f"--dir {folder}")
        path = f"{Path(binaries()[0]).parent}:{os.environ['PATH']}"
        process = subprocess.Popen(["sh", "-c", script], env={**os.environ, "PATH": path})
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0

    def _here(self, text: str) -> str:
        for port, here in self._ports.items():
            name = r"\b([a-z0-9-]+\.)?[a-z0-9-]+\.prod\.svc"
            text = re.sub(rf"{name}:{port}\b", f"127.0.0.1:{here}", text)
            text = re.sub(rf"\b0\.0\.0\.0:{port}\b", f"127.0.0.1:{here}", text)
            text = re.sub(rf"((--|,|_|-)port[ =]){port}\b", rf"\g<1>{here}", text)
        return re.sub(r"host=[a-z0-9-]+\.prod\.svc\b", "host=127.0.0.1", text)

    def probe(self, name: str, kind: str) -> int:
        """The status of a probe as the kubelet makes it; 0: nobody listens."""
        path = self._containers[name].container[kind]["httpGet"]["path"]
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(f"127.0.0.1:{self.metrics[name]}", path)[0]
        return 0


@pytest.mark.nightly
@pytest.mark.parametrize("is_lazy", [False, True], ids=["loaded", "loaded lazily"])
def test_they_find_each_other_and_say_so(tmp_path: Path, *, is_lazy: bool) -> None:
    objects = render(VALUE_SETS["loaded lazily" if is_lazy else "mTLS by cert-manager"])
    host = Host(tmp_path, objects)
    with contextlib.ExitStack() as stack:
        stack.enter_context(host.redis())
        for name in ("cache", "scheduler", "gateway"):
            stack.enter_context(host.running(name))
        until(lambda: host.probe("scheduler", "readinessProbe") == 200, "the scheduler")
        until(lambda: host.probe("gateway", "livenessProbe") == 200, "the gateway")
        if not is_lazy:
            # There is no executor yet, so that no model can be loaded.
            assert host.probe("gateway", "readinessProbe") >= 400
        stack.enter_context(host.running("executor"))
        until(lambda: host.probe("executor", "readinessProbe") == 200, "the executor")
        until(lambda: host.probe("gateway", "readinessProbe") == 200, "readiness")
        for name in host.metrics:
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert host.probe(name, kind) == 200, (name, kind)

        def infer() -> list[float]:
            status, body = ask(host.http, "/v2/models/m/infer", "POST", _REQUEST)
            assert status == 200, body
            outputs: list[float] = json.loads(body)["outputs"][0]["data"]
            return outputs

        assert infer() == [1, 2]
        # The response has been stored in Redis, by the password and over TLS as far as the cache.
        hit = re.compile(r'nv_cache_num_hits_per_model\{model="m".*\} [1-9]')

        def is_cached() -> bool:
            assert infer() == [1, 2]
            page = ask(f"127.0.0.1:{host.metrics['scheduler']}", "/metrics")[1].decode()
            return hit.search(page) is not None

        until(is_cached, "a response from the cache")
    assert [host.probe(name, "livenessProbe") for name in host.metrics] == [0, 0, 0, 0]
