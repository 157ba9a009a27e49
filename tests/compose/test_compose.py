"""`docker compose up` as a user meets it: it serves, scales, and loses nothing."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.compose.load import ask, clients, load
from tests.compose.models import CACHED, PACKED, PLAIN
from tests.compose.stack import ROOT, SERVICES, Stack, documented_bytes
from tests.support.mesh.mesh import until

ALL_SERVICES = (*SERVICES, "redis", "prometheus", "secrets")
_CONNECT = """
import socket
try:
    socket.create_connection(("{}", {}), timeout=3).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
_SECRET_FILES = "import glob; print(*glob.glob('/run/nereid/*/*'))"
_SERIES_OF_CACHED = f'{{model="{CACHED}",version="1"}}'


async def test_clients_on_the_host_get_responses_over_both_protocols(stack: Stack) -> None:
    async with clients(*stack.edges()) as pairs:
        for module, client in pairs:
            assert await client.is_server_ready()
            await ask(module, client, PLAIN, 21)
            await ask(module, client, CACHED, 21)


async def test_a_python_model_gets_its_packages_in_the_executors_image(stack: Stack) -> None:
    async with clients(*stack.edges()) as pairs:
        for module, client in pairs:
            await ask(module, client, PACKED, 7, factor=3)


@pytest.mark.parametrize("service", SERVICES)
def test_images_are_as_small_as_the_page_says(stack: Stack, service: str) -> None:
    assert stack.image_bytes(f"nereid-{service}:test") <= documented_bytes(f"nereid-{service}")


def test_every_container_is_limited_and_can_change_nothing(stack: Stack) -> None:
    for service in ALL_SERVICES:
        host = stack.facts(service)["HostConfig"]
        assert host["Memory"] > 0, service
        assert host["NanoCpus"] > 0, service
        assert 0 < host["PidsLimit"] <= 4096, service
        assert host["ReadonlyRootfs"] is True, service
        assert host["CapDrop"] == ["ALL"], service
        assert not host["CapAdd"], service
        assert host["SecurityOpt"] == ["no-new-privileges:true"], service


def test_ports_are_published_on_the_loopback_interface_alone(stack: Stack) -> None:
    published = {}
    for service in ALL_SERVICES:
        for port, bindings in (stack.facts(service)["NetworkSettings"]["Ports"] or {}).items():
            for binding in bindings or ():
                published[service, port] = binding["HostIp"]
    gateway = [("gateway", f"{port}/tcp") for port in (8000, 8001, 8002)]
    assert published == dict.fromkeys([*gateway, ("prometheus", "9090/tcp")], "127.0.0.1")


def test_executors_reach_the_scheduler_but_neither_redis_nor_other_hosts(stack: Stack) -> None:
    """What a model.py can do: it runs in the executor's container."""
    networks = stack.facts("redis")["NetworkSettings"]["Networks"]
    (address,) = (each["IPAddress"] for each in networks.values())
    assert stack.python("executor", _CONNECT.format("scheduler", 8003)) == "connected"
    assert stack.python("cache", _CONNECT.format("redis", 6379)) == "connected"
    assert stack.python("executor", _CONNECT.format("redis", 6379)) == "gaierror"
    for service in ("executor", "scheduler", "gateway"):
        assert stack.python(service, _CONNECT.format(address, 6379)) != "connected", service
    # What an internal network does not lead to is the engine's business.
    for network in stack.facts("executor")["NetworkSettings"]["Networks"]:
        assert stack.docker("network", "inspect", "-f", "{{.Internal}}", network).strip() == "true"


def test_secrets_are_made_for_this_mesh_and_each_service_has_its_own(stack: Stack) -> None:
    def files(service: str) -> set[str]:
        return set(stack.python(service, _SECRET_FILES).split())

    assert files("executor") == {"/run/nereid/executor/token"}
    assert files("gateway") == {"/run/nereid/gateway/token"}
    assert files("scheduler") == {"/run/nereid/mesh/token"}
    redis = {"/run/nereid/redis/password", "/run/nereid/redis/redis.conf"}
    assert files("cache") == {"/run/nereid/cache/token", *redis}
    folders = {"gateway": "gateway", "scheduler": "mesh", "executor": "executor", "cache": "cache"}
    tokens = {
        stack.python(service, f"print(open('/run/nereid/{folder}/token').read())")
        for service, folder in folders.items()
    }
    assert len(tokens) == 4
    password = stack.python("cache", "print(open('/run/nereid/redis/password').read())")
    assert min(map(len, {*tokens, password})) >= 40

    def redis_cli(*words: str) -> str:
        return stack.compose("exec", "-T", "redis", "redis-cli", *words)

    assert "NOAUTH" in redis_cli("get", "x")
    for guess in ("redis", "nereid", "admin", password[:-1]):
        assert "PONG" not in redis_cli("-a", guess, "ping")
    # Nor does a secret stand where other processes or `docker inspect` show it.
    for service in ALL_SERVICES:
        facts = stack.facts(service)
        shown = str(facts["Config"]) + str(facts["Args"])
        assert not any(secret in shown for secret in {*tokens, password}), service
    assert stack.facts("secrets")["State"]["ExitCode"] == 0


def test_grafana_has_no_default_password(stack: Stack) -> None:
    shown = stack.compose("--profile", "observability", "config", "--format", "json")
    environment = json.loads(shown)["services"]["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/nereid/grafana/password"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in environment


def test_base_images_are_pinned() -> None:
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "deploy/Dockerfile").read_text()
    images = re.findall(r"_IMAGE(?:=|:-)([^\s}]+)", text)
    assert len(images) == 6
    assert all(re.search(r":v?\d+\.\d+\.\d+", each) for each in images), images


async def test_an_executor_and_redis_killed_under_load_cost_no_request(stack: Stack) -> None:
    stack.up(executors=2)
    executors = stack.containers("executor")
    assert len(executors) == 2
    until(lambda: stack.metrics()["nereid_executors"] == 2, "both executors to join")
    before = stack.metrics()
    async with load(*stack.edges()) as running:
        await running.more(200)
        hits = "nv_cache_num_hits_per_model" + _SERIES_OF_CACHED
        assert (await asyncio.to_thread(stack.metrics))[hits] > before[hits]

        await asyncio.to_thread(stack.docker, "kill", executors[0])
        await running.more(200)
        assert (await asyncio.to_thread(stack.metrics))["nereid_executors"] == 1

        await asyncio.to_thread(stack.compose, "kill", "redis")
        await running.more(400)
        assert (await asyncio.to_thread(stack.metrics))["nereid_cache_failures_total"] > 0

        # Started again, it is used again, also without a restart of anything else.
        await asyncio.to_thread(stack.up, executors=2)
        now = await asyncio.to_thread(stack.metrics)
        await running.more(400)
        assert (await asyncio.to_thread(stack.metrics))[hits] > now[hits]
    assert running.failures == []


def test_prometheus_scrapes_every_service(stack: Stack) -> None:
    stack.up(executors=2)
    jobs = ["cache", "executor", "executor", "gateway", "prometheus", "scheduler"]
    until(lambda: stack.targets() == [(job, "up") for job in jobs], f"{jobs} to be scraped")
