"""The chart's objects as a cluster on one machine, and a rolling restart of all of it under load.

    python -m tests.deploy.cluster --objects objects.json --output DIRECTORY

Containers have the chart's commands, environment, users, volumes, Secrets, names, policies, probes
and hooks, in namespaces of their own; the address of each pod is a network namespace's. What is
not there: an API server, cgroups, seccomp profiles, size limits of volumes. report.json in the
directory says what clients and pods saw.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import trustme

from tests.deploy.cluster.clients import RESPONSES, Plan
from tests.deploy.cluster.image import Image
from tests.deploy.cluster.monitoring import Monitoring
from tests.deploy.cluster.network import Network
from tests.deploy.cluster.pod import Pod, Storage
from tests.deploy.cluster.workloads import KINDS, Workload
from tests.support.chart.objects import COMPONENT, of_kind
from tests.support.chart.rendering import RELEASE, Object
from tests.support.mesh.mesh import ask
from tests.support.models import accumulators
from tests.support.models.onnx_models import identity
from tests.support.waiting import until
from tests.torment import hosts

_CLIENTS: Final = {
    "http": ["plain", "plain", "cached", "slow", "sequence"],
    "grpc": ["plain", "plain", "cached", "slow", "sequence", "stream"],
}
_CONFIG: Final = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 2 }
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
_MODELS: Final = {
    "plain": "dynamic_batching {}",
    "cached": "response_cache { enable: true }",
    "slow": 'backend: "python"',
    "stream": 'backend: "python" model_transaction_policy { decoupled: true }',
}
_PROGRESS_S: Final = 120.0
# A second in each: requests are in flight at whatever ends.
_SLOW: Final = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy().min() < 0:
            raise ValueError("negative")
        time.sleep(1)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy())])
            for each in requests
        ]
"""
# Responses to a request are (x, 0), (x, 1) and so on, for half a second.
_STREAM: Final = f"""
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = request.inputs()[0].as_numpy()[0, 0]
            for place in range({RESPONSES}):
                time.sleep(0.5 / {RESPONSES})
                y = pb_utils.Tensor("y", np.array([[x, place]], np.float32))
                sender.send(pb_utils.InferenceResponse([y]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_PYTHON: Final = {"slow": _SLOW, "stream": _STREAM}


def _write_repository(root: Path) -> None:
    """Models that return what they get, and one that sums it up over a sequence."""
    for name, more in _MODELS.items():
        if name in _PYTHON:
            (root / name / "1").mkdir(parents=True)
            (root / name / "1/model.py").write_text(_PYTHON[name])
        else:
            identity(root / name / "1", "FP32", ["n", 2])
        (root / name / "config.pbtxt").write_text(f"{_CONFIG}{more}\n")
    # With implicit state, which moves with a sequence.
    accumulators.save(root, "sequence", "onnxruntime")


def _secrets(objects: list[Object]) -> dict[str, dict[str, bytes]]:
    """The chart's own, and those that cert-manager makes for its Certificates."""
    found = {
        each["metadata"]["name"]: {
            key: base64.b64decode(value) for key, value in each.get("data", {}).items()
        }
        for each in of_kind(objects, "Secret")
    }
    authority = trustme.CA()
    for each in of_kind(objects, "Certificate"):
        if each["spec"].get("isCA"):
            continue
        issued = authority.issue_cert(*each["spec"]["dnsNames"])
        found[each["spec"]["secretName"]] = {
            "ca.crt": authority.cert_pem.bytes(),
            "tls.crt": b"".join(pem.bytes() for pem in issued.cert_chain_pems),
            "tls.key": issued.private_key_pem.bytes(),
        }
    return found


class Cluster:
    """All that the chart's objects become."""

    def __init__(self, objects: list[Object], folder: Path) -> None:
        self._hosts = hosts.Hosts(isolated=True)
        self.clients_host = self._hosts.add("clients")
        _add_route(self.clients_host)
        claims = folder / "claims"
        _write_repository(claims / "models")
        image = Image(folder / "image", hosts.CLIENT_ADDRESS)
        self._storage = Storage(folder / "pods", image, _secrets(objects), claims)
        self.network = Network(objects, [self.clients_host])
        self.workloads = [
            KINDS[each["kind"]](each, self._make_pod) for each in of_kind(objects, *KINDS)
        ]
        self._uids = itertools.count(1)
        self._adding = asyncio.Lock()

    async def _make_pod(self, name: str, template: Object) -> Pod:
        uid = f"{name}.{next(self._uids)}"
        async with self._adding:
            host = await asyncio.to_thread(self._hosts.add, uid)
            await asyncio.to_thread(_add_route, host)
        pod = Pod(name, template, host, self._storage, self.network.on_change, uid)
        self.network.pods.append(pod)
        await self.network.apply()
        pod.start()
        return pod

    def pods_of(self, component: str) -> list[Pod]:
        return [
            each
            for each in self.network.pods
            if each.labels[COMPONENT] == component and not each.is_over
        ]

    async def can_connect(self, source: str, target: str, port: int) -> bool:
        """Whether a pod of one component reaches a port of another's."""
        address = self.pods_of(target)[0].host.address
        script = f"exec timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/{port}'"
        process = await self.pods_of(source)[0].execute("sh", "-c", script)
        return await process.wait() == 0

    def fail(self) -> None:
        """Send a request that the model fails, which some panels show."""
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [-1, -1]}]}
        address = f"{self.pods_of('gateway')[0].host.address}:8000"
        status, text = ask(address, "/v2/models/slow/infer", "POST", json.dumps(body).encode())
        assert status == 500, text

    async def each(self, action: str) -> None:
        """start, restart or stop all workloads, at the same time."""
        async with asyncio.TaskGroup() as group:
            for workload in self.workloads:
                group.create_task(getattr(workload, action)())

    def close(self) -> None:
        self._hosts.close()


def _add_route(host: hosts.Host) -> None:
    """For Services' addresses, which no host has."""
    hosts.run(*host.command("ip", "route", "add", "default", "via", hosts.CLIENT_ADDRESS))


class Load:
    """The processes of clients."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last: dict[str, Any] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, host: hosts.Host, plan: Plan, log: Path) -> Load:
        argv = host.command(sys.executable, "-m", "tests.deploy.cluster.clients", plan.to_json())
        pipe = asyncio.subprocess.PIPE
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=errors
            )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            self._last = json.loads(line)

    async def advance(self) -> None:
        """Until each client has had two more responses: to one request that begins from now on."""
        before = dict(self._last)

        def has_advanced() -> bool:
            if self._reader.done():
                raise RuntimeError("the clients have ended")
            return bool(self._last) and all(
                count >= before.get(name, 0) + 2 for name, count in self._last.items()
            )

        await until(has_advanced, _PROGRESS_S)

    async def stop(self) -> dict[str, Any]:
        """Their report."""
        assert self._process.stdin
        self._process.stdin.close()
        await self._reader
        await self._process.wait()
        return self._last


def _shown(workload: Workload) -> dict[str, Any]:
    return {
        "replicas": workload.replicas,
        "made": len(workload.replaced),
        "ends": [each._asdict() for each in workload.ends],
        "complaints": [text for pod in workload.replaced for text in pod.complaints],
    }


async def _roll(objects: list[Object], folder: Path, output: Path) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(64))
    cluster = Cluster(objects, folder)
    monitoring = Monitoring(objects, folder / "monitoring")
    service = cluster.network.services[f"{RELEASE}-nereid"]
    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as stack:
        stack.callback(cluster.close)
        network = group.create_task(cluster.network.run())
        stack.callback(network.cancel)
        watching = group.create_task(monitoring.run(cluster.network.pods))
        stack.callback(watching.cancel)
        began = loop.time()
        await cluster.each("start")
        started = loop.time()
        loads = {
            protocol: await Load.start(
                cluster.clients_host,
                Plan(protocol, f"{service.address}:{service.ports[protocol][0]}", models),
                output / f"{protocol}-clients.log",
            )
            for protocol, models in _CLIENTS.items()
        }
        for load in loads.values():
            await load.advance()
        arrows = [
            ("scheduler", "cache", 8004),
            ("executor", "cache", 8004),
            ("executor", "redis", 6379),
            ("gateway", "executor", 8002),
        ]
        connected = {
            f"{source} to {target}": await cluster.can_connect(source, target, port)
            for source, target, port in arrows
        }
        rolling = loop.time()
        await cluster.each("restart")
        rolled = loop.time()
        for load in loads.values():
            await load.advance()
        watched = await monitoring.report("cached", cluster.fail)
        reports = {protocol: await load.stop() for protocol, load in loads.items()}
        await cluster.each("stop")
        return {
            "seconds": {"start": round(started - began), "restart": round(rolled - rolling)},
            "connected": connected,
            "clients": reports,
            "watched": watched,
            "workloads": {each.name: _shown(each) for each in cluster.workloads},
        }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.deploy.cluster", description=__doc__)
    parser.add_argument("--objects", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(argv)
    if not hosts.is_inside():
        return hosts.enter("tests.deploy.cluster", argv)
    hosts.become_init()
    folder = given.output / "node"
    folder.mkdir()
    # emptyDir volumes are in memory.
    hosts.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
    objects = json.loads(given.objects.read_text())
    try:
        report = asyncio.run(_roll(objects, folder, given.output))
        (given.output / "report.json").write_text(json.dumps(report, indent=2))
    finally:
        for each in sorted((folder / "pods").glob("*.log")):
            (given.output / each.name).write_bytes(each.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
