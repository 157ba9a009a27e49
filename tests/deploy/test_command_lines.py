"""The processes accept what the chart has them started with: each container's arguments and
environment, read by the service's own settings, with the files that the pod would mount.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from nereid.config.settings_reader import read_settings
from nereid.mesh_auth.tokens import MeshToken
from nereid_cache.settings import CacheSettings
from nereid_executor.settings import ExecutorSettings
from nereid_gateway.settings import GatewaySettings
from nereid_scheduler.settings import Settings as SchedulerSettings
from tests.support.chart.objects import Container, component, containers
from tests.support.chart.pod import ROLES, Pod, arguments
from tests.support.chart.rendering import ROOT, Object, render
from tests.support.chart.value_sets import VALUE_SETS

SERVICES: Final[dict[str, type[Any]]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "executor": ExecutorSettings,
    "cache": CacheSettings,
}


def services(values: Object) -> list[tuple[str, Container]]:
    """The containers of the mesh's services, and which service each is."""
    found = ((component(each.workload), each) for each in containers(render(values)))
    return [
        (name, each) for name, each in found if name in SERVICES and name == each.container["name"]
    ]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_settings_are_accepted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = Pod(tmp_path)
    for service, each in services(VALUE_SETS[name]):
        pod.use_token_of(service)
        argv = [pod.path_here(text) for text in arguments(each.container)]
        environ = {
            entry["name"]: entry["value"]
            for entry in each.container.get("env", [])
            if "value" in entry
        }
        try:
            settings = read_settings(SERVICES[service], argv, environ, service)
        except SystemExit:
            pytest.fail(f"{each.where} refuses its settings: {capsys.readouterr().err}")
        assert settings.metrics_port == 8002
        if service == "scheduler":
            assert settings.shard_name() == "demo-0"
        if service == "gateway":
            assert settings.max_pending_bytes == 1 << 30


def test_flags_are_those_of_the_reference() -> None:
    reference = (ROOT / "docs/reference/flags.md").read_text()
    known = set(re.findall(r"`(--[a-z0-9-]+)`", reference))
    passed = {
        text.partition("=")[0]
        for values in VALUE_SETS.values()
        for _, each in services(values)
        for text in arguments(each.container)
    }
    assert passed <= known
    assert len(passed) > 40


def test_ipv6_addresses_are_read(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    found = {}
    for service, each in services(VALUE_SETS["hardened on IPv6"]):
        pod.use_token_of(service)
        argv = [pod.path_here(text) for text in arguments(each.container)]
        found[service] = read_settings(SERVICES[service], argv, {}, service)
    gateway = found["gateway"]
    assert (gateway.http_at, gateway.metrics_at) == ("[::]:8000", "[::]:8002")
    assert found["scheduler"].scheduler_address == ("[::]:8003",)
    assert not gateway.open_control_apis


def test_models_that_are_loaded_lazily_leave_memory_to_the_rest() -> None:
    values = VALUE_SETS["loaded lazily"]
    classes = {"cpu": {}, "small": {"resources": {"limits": {"cpu": "2", "memory": "3Gi"}}}}
    found = {}
    for service, each in services({**values, "executor": {"classes": classes}}):
        found[service] = arguments(each.container)
    assert {f"--model-memory-budget=cpu={3 << 29}", "--lazy-loading=true"} <= set(
        found["scheduler"]
    )
    assert "--malloc-arenas=2" in found["executor"]
    # Not with several schedulers, and so not by an address that may become several.
    assert not any(text.startswith("--scheduler-peers") for text in found["scheduler"])
    address = "demo-nereid-scheduler-0.demo-nereid-schedulers.prod.svc:8003"
    for service in ("gateway", "executor"):
        assert f"--scheduler-address={address}" in found[service]


@pytest.mark.parametrize("service", ROLES)
def test_the_init_container_makes_the_roles_token(service: str, tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "nereid"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from nereid.cli import main; main()" "$@"\n'
    )
    program.chmod(0o755)
    (command,) = {
        tuple(each.container["command"])
        for each in containers(render(VALUE_SETS["least"]))
        if each.is_init and component(each.workload) == service
    }
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    words = [pod.path_here(word) for word in command]
    subprocess.run(words, check=True, env=environ, timeout=60)
    made = pod.root / "run/nereid/mesh/token"
    assert MeshToken(made.read_text().strip()).only is ROLES[service]
    assert made.stat().st_mode & 0o777 == 0o600


def test_only_schedulers_see_the_meshs_own_token() -> None:
    for values in VALUE_SETS.values():
        for service, each in services(values):
            mounts = {mount["mountPath"]: mount["name"] for mount in each.container["volumeMounts"]}
            given = "mesh-token" if _has_role_secret(values, service) else "role-token"
            own = "mesh-token" if service == "scheduler" else given
            assert mounts["/run/nereid/mesh"] == own
            assert list(mounts.values()).count("mesh-token") == (own == "mesh-token")


def _has_role_secret(values: Object, service: str) -> bool:
    secrets = values.get("mesh", {}).get("token", {}).get("roleSecrets", {})
    return bool(secrets.get(service))
