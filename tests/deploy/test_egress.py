"""NetworkPolicies let out what the values ask for, and nothing else."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.chart.objects import named
from tests.support.chart.rendering import Object, render
from tests.support.chart.value_sets import VALUE_SETS

_DNS: Final = {53}
_IDENTITIES: Final = {
    "gs": {"169.254.169.254/32", "169.254.169.252/32"},
    "s3": {"169.254.170.23/32"},
    "as": set[str](),
}


def ways_out(values: Object, who: str) -> tuple[set[int], set[str]]:
    """The ports that are open to any address, and the blocks of addresses that are."""
    policy = named(render(values), "NetworkPolicy", f"demo-nereid-{who}")["spec"]
    rules = policy["egress"]
    ports = {port["port"] for each in rules if not each.get("to") for port in each["ports"]}
    peers = [peer for each in rules for peer in each.get("to", ())]
    return ports - _DNS, {peer["ipBlock"]["cidr"] for peer in peers if "ipBlock" in peer}


def _stored(location: str, **repository: Any) -> dict[str, Any]:
    return VALUE_SETS["object store"] | {
        "modelRepository": {"locations": [location], **repository},
        "networkPolicy": {},
    }


@pytest.mark.parametrize(
    ("location", "port"),
    [
        ("s3://bucket/models", 443),
        ("s3://bucket", 443),
        ("s3://minio.storage:9000/bucket", 9000),
        ("s3://[fd00::9]:9000/bucket", 9000),
        ("s3://http://minio:9000/bucket", 9000),
        ("s3://http://minio/bucket", 80),
        ("s3://https://store.example/bucket/models", 443),
        ("gs://bucket/models", 443),
        ("as://account/container/models", 443),
    ],
)
def test_schedulers_and_executors_reach_the_store(location: str, port: int) -> None:
    values = _stored(location)
    for who in ("scheduler", "executor"):
        assert ways_out(values, who) == ({port}, _IDENTITIES[location[:2]]), who
    for who in ("gateway", "cache"):
        assert ways_out(values, who) == (set(), set()), who


def test_paths_need_no_way_out() -> None:
    assert ways_out(VALUE_SETS["least"], "executor") == (set(), set())


@pytest.mark.parametrize(
    ("name", "value", "port"),
    [
        ("HTTPS_PROXY", "http://proxy.example:3128", 3128),
        ("https_proxy", "http://user:secret@proxy.example:3128/", 3128),
        ("AWS_ENDPOINT_URL_S3", "https://store.example:8443", 8443),
        ("STORAGE_EMULATOR_HOST", "http://gcs.test:4443", 4443),
    ],
)
def test_the_environment_sends_them_elsewhere(name: str, value: str, port: int) -> None:
    values = _stored("s3://bucket/models", env=[{"name": name, "value": value}])
    assert ways_out(values, "executor")[0] == {443, port}
    class_env = {"classes": {"cpu": {"extraEnv": [{"name": name, "value": value}]}}}
    assert ways_out(_stored("s3://b") | {"executor": class_env}, "executor")[0] == {443, port}
    # Nothing is copied then.
    plain = VALUE_SETS["least"]
    repository = {**plain["modelRepository"], "env": [{"name": name, "value": value}]}
    assert ways_out(plain | {"modelRepository": repository}, "executor")[0] == set()


def test_managed_identities_of_azure() -> None:
    env = [{"name": "AZURE_STORAGE_AUTH_TYPE", "value": "managed_identity"}]
    values = _stored("as://account/container", env=env)
    assert ways_out(values, "scheduler") == ({443}, {"169.254.169.254/32"})


def test_rules_of_the_operators_own_stand_alone() -> None:
    rule = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]}
    values = _stored("gs://bucket") | {"networkPolicy": {"repositoryEgress": [rule]}}
    assert ways_out(values, "executor") == (set(), {"192.0.2.0/24"})
    traced = {"tracing": ["opentelemetry,url=http://collector:4317"]}
    values = VALUE_SETS["least"] | traced | {"networkPolicy": {"tracingEgress": [rule]}}
    assert ways_out(values, "gateway") == (set(), {"192.0.2.0/24"})


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("http://collector.tracing:4317", {4317}),
        ("collector:4317", {4317}),
        ("http://$(HOST_IP):4317", {4317}),
        ("https://otel.example", {443}),
        ("http://otel.example:4318/v1/traces", {4318}),
        ("http://[fd00::5]:4317", {4317}),
        # Of the pod itself, such as a sidecar's.
        ("http://localhost:4317", set()),
        ("http://127.0.0.1:4317", set()),
        ("http://[::1]:4317", set()),
    ],
)
def test_spans_leave_every_service(url: str, ports: set[int]) -> None:
    values = VALUE_SETS["least"] | {"tracing": ["rate=1", f"opentelemetry,url={url}"]}
    for who in ("gateway", "scheduler", "executor", "cache"):
        assert ways_out(values, who) == (ports, set()), who


def test_spans_of_one_service() -> None:
    env = [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"}]
    values = VALUE_SETS["least"] | {
        "gateway": {"extraArgs": ["--trace-config=opentelemetry,url=http://c:4317"]},
        "cache": {"extraEnv": [*env, {"name": "X", "valueFrom": {}}]},
    }
    expected = {"gateway": {4317}, "cache": {4318}, "scheduler": set[int](), "executor": set[int]()}
    assert {who: ways_out(values, who)[0] for who in expected} == expected


def test_the_cache_reaches_somebody_elses_redis() -> None:
    assert ways_out(VALUE_SETS["somebody else's Redis"], "cache")[0] == {6380}


def test_issuers_of_clients_tokens_are_asked_nothing() -> None:
    # Their keys are files (docs/operators/authentication.md).
    assert ways_out(VALUE_SETS["clients' TLS and keys"], "gateway") == (set(), set())
