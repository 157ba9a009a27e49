"""Values that are wrong are refused, with a message that says which and what to write instead."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.support.chart.objects import named, of_kind
from tests.support.chart.rendering import CHART, Object, ValuesError, notes, render
from tests.support.chart.value_sets import VALUE_SETS
from tests.support.pages import blocks

_LEAST: Final = VALUE_SETS["least"]

# What is wrong beside the least values, and what the message has to contain.
WRONG: Final[dict[str, tuple[Object, tuple[str, ...]]]] = {
    "no repository": (
        {"modelRepository": {"volumes": []}},
        ("modelRepository.volumes: nothing is mounted at /models", "persistentVolumeClaim"),
    ),
    "a mistyped name": ({"gateway": {"replica": 3}}, ("/gateway", "'replica'")),
    "a mistyped name in a class": (
        {"executor": {"classes": {"gpu": {"gpu": "all"}}}},
        ("/executor/classes/gpu", "'gpu'"),
    ),
    "a number as text": ({"scheduler": {"replicas": "2"}}, ("/scheduler/replicas", "integer")),
    "no scheduler": ({"scheduler": {"replicas": 0}}, ("/scheduler/replicas",)),
    "no limits": ({"gateway": {"resources": {"limits": {"cpu": None}}}}, ("cpu",)),
    "a quantity": ({"gateway": {"temporarySize": "1 GB"}}, ("/gateway/temporarySize",)),
    "not a flag": ({"gateway": {"extraArgs": ["log-verbose=1"]}}, ("/gateway/extraArgs",)),
    "GPUs of nowhere": (
        {"executor": {"classes": {"big": {"gpus": "all"}}}},
        ("executor.classes.big.accelerator.resource", "nvidia.com/gpu"),
    ),
    "several schedulers that load lazily": (
        {"modelRepository": {"lazyLoading": {"enabled": True}}},
        ("scheduler.replicas: modelRepository.lazyLoading needs one scheduler",),
    ),
    "a budget of models that stay": (
        {"modelRepository": {"lazyLoading": {"memoryBudget": ["cpu=1GiB"]}}},
        ("modelRepository.lazyLoading.memoryBudget: needs", "lazyLoading.enabled: true"),
    ),
    "a budget of no size": (
        {"modelRepository": {"lazyLoading": {"enabled": True, "memoryBudget": ["cpu=much"]}}},
        ("/modelRepository/lazyLoading/memoryBudget/0",),
    ),
    "GPUs without a budget": (
        {
            "modelRepository": {"lazyLoading": {"enabled": True}},
            "scheduler": {"replicas": 1},
            "executor": {"classes": {"gpu": {"enabled": True}}},
        },
        ("executor.classes.gpu has GPUs, whose memory", "gpu=20GiB"),
    ),
    "no executors": (
        {"executor": {"classes": {"cpu": {"enabled": False}}}},
        ("executor.classes: no class is enabled",),
    ),
    "a strategy of its own": (
        {"gateway": {"strategy": {"type": "Rolling"}}},
        ("/gateway/strategy/type", "RollingUpdate"),
    ),
    "a Service that balances no load": (
        {
            "gateway": {
                "service": {
                    "externalTrafficPolicy": "Local",
                    "loadBalancerSourceRanges": ["192.0.2.0/24"],
                    "grpcPort": 8000,
                }
            }
        },
        (
            "gateway.service.externalTrafficPolicy: needs",
            "gateway.service.loadBalancerSourceRanges: needs",
            "gateway.service.grpcPort: is",
        ),
    ),
    "models to load": (
        {"modelRepository": {"loadModels": ["a"]}},
        ("modelRepository.loadModels: needs modelRepository.controlMode: explicit",),
    ),
    "forgetful schedulers": (
        {"modelRepository": {"controlMode": "explicit"}},
        ("scheduler.state.store: with controlMode: explicit",),
    ),
    "forgetful Redis": (
        {"scheduler": {"state": {"store": "redis"}}},
        ("scheduler.state.store: the chart's own Redis", "redis.persistence.enabled: true"),
    ),
    "state without a Redis": (
        {"scheduler": {"state": {"store": "redis"}}, "cache": {"store": "local"}},
        ("scheduler.state.store: redis needs cache.enabled",),
    ),
    "state without a volume": (
        {"scheduler": {"state": {"store": "volume"}}},
        ("scheduler.state.claimName",),
    ),
    "a Redis that fills up": (
        {"redis": {"persistence": {"enabled": True}}},
        ("cache.ttlSeconds: with redis.persistence.enabled",),
    ),
    "several memories": ({"cache": {"store": "local", "replicas": 2}}, ("cache.replicas: ",)),
    "TLS without a certificate": (
        {"gateway": {"tls": {"http": True}}},
        ("gateway.tls.secretName",),
    ),
    "clients' certificates without TLS": (
        {"gateway": {"tls": {"clientCertificates": True}}},
        ("gateway.tls.clientCertificates: needs",),
    ),
    "two configurations": (
        {"gateway": {"auth": {"existingSecret": "a", "config": "b"}}},
        ("gateway.auth: existingSecret and config exclude each other",),
    ),
    "mesh certificates": (
        {"mesh": {"tls": {"mode": "secrets", "secrets": {"gateway": "g", "scheduler": "s"}}}},
        ("mesh.tls.secrets.executor", "mesh.tls.secrets.cache"),
    ),
    "a rollout that fails at once": (
        {"executor": {"classes": {"big": {"progressDeadlineSeconds": 60, "minReadySeconds": 60}}}},
        ("executor.classes.big.progressDeadlineSeconds: has to be more than minReadySeconds",),
    ),
    "a route to nowhere": (
        {"gatewayApi": {"grpc": {"enabled": True}}},
        ("gatewayApi.grpc.parentRefs",),
    ),
    "images of nowhere": (
        {"images": {"registry": ""}},
        ("images.registry: is empty", "nereid-gateway (gateway)", "Docker Hub's library", "Never"),
    ),
    "a load balancer's class": (
        {"gateway": {"service": {"loadBalancerClass": "a/b"}}},
        ("gateway.service.loadBalancerClass: needs gateway.service.type: LoadBalancer",),
    ),
    "three families": ({"services": {"ipFamilies": ["IPv5"]}}, ("/services/ipFamilies/0",)),
    "a probe of its own": (
        {"gateway": {"probes": {"readiness": {"httpGet": {"path": "/"}}}}},
        ("/gateway/probes/readiness", "httpGet"),
    ),
    "a sidecar without an image": ({"redis": {"sidecars": [{"name": "a"}]}}, ("image",)),
    "TLS behind the Gateway": (
        {"gatewayApi": {"backendTLS": {"enabled": True}}},
        (
            "gatewayApi.backendTLS.enabled: needs gateway.tls.http or gateway.tls.grpc",
            "gatewayApi.backendTLS.hostname: names",
            "gatewayApi.backendTLS.caCertificateRefs: give these",
        ),
    ),
    "two authorities": (
        {
            "gateway": {"tls": {"secretName": "edge", "http": True}},
            "gatewayApi": {
                "backendTLS": {
                    "enabled": True,
                    "hostname": "a.example",
                    "caCertificateRefs": [{"name": "ca"}],
                    "wellKnownCACertificates": "System",
                }
            },
        },
        ("gatewayApi.backendTLS.caCertificateRefs", "not both"),
    ),
    "an ingress for no host": ({"ingress": {"http": {"enabled": True}}}, ("ingress.http.hosts",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_message_names_the_value(name: str) -> None:
    values, expected = WRONG[name]
    with pytest.raises(ValuesError) as caught:
        render(_LEAST | values)
    for text in expected:
        assert text in str(caught.value)


def test_all_errors_are_named_at_once() -> None:
    wrong = {"gatewayApi": {"http": {"enabled": True}}, "modelRepository": {"loadModels": ["a"]}}
    with pytest.raises(ValuesError) as caught:
        render(wrong)
    for text in ("gatewayApi.http.parentRefs", "loadModels", "modelRepository.volumes"):
        assert text in str(caught.value)


def test_the_schema_has_every_value_and_no_other() -> None:
    yaml = pytest.importorskip("yaml")
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    # Those of other charts as well.
    assert schema["properties"].pop("global")["properties"].keys() == values.pop("global").keys()
    assert _missing(schema, values, "") == set()


def _missing(schema: Object, values: Any, path: str) -> set[str]:
    """Properties that values.yaml does not show, of objects that it has; the rest Helm checks."""
    properties = schema.get("properties")
    if not properties or not isinstance(values, dict):
        return set()
    assert schema["additionalProperties"] is False, path
    found = {f"{path}{key}" for key in properties if key not in values}
    for key, value in values.items():
        found |= _missing(properties.get(key, {}), value, f"{path}{key}.")
    return found


def test_replicas_may_be_left_to_an_autoscaler() -> None:
    objects = render(VALUE_SETS["everybody's way in"])
    assert "replicas" not in named(objects, "Deployment", "demo-nereid-gateway")["spec"]
    assert named(objects, "Deployment", "demo-nereid-executor-cpu")["spec"]["replicas"] == 2
    objects = render(VALUE_SETS["accelerators"])
    pods = named(objects, "Deployment", "demo-nereid-executor-mig-1g-10gb")["spec"]
    assert "replicas" not in pods
    (container,) = pods["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    assert container["image"].startswith("registry.example/nereid-executor-gpu:")


def test_objectives_are_alerted_on_where_they_are_asked_for() -> None:
    for slo in (False, True):
        objects = render(_LEAST | {"monitoring": {"rules": {"enabled": True, "slo": slo}}})
        names = {each["metadata"]["name"] for each in of_kind(objects, "PrometheusRule")}
        expected = {"alerts", "recording"} | ({"slo"} if slo else set())
        assert names == {f"demo-nereid-{name}" for name in expected}


def test_a_class_needs_no_values_of_its_own() -> None:
    plain: Object = {"plain": {}, "scaled": {"replicas": None}, "cpu": None}
    objects = render(_LEAST | {"executor": {"classes": plain}})
    spec = named(objects, "Deployment", "demo-nereid-executor-plain")["spec"]
    assert spec["replicas"] == 1
    scaled = named(objects, "Deployment", "demo-nereid-executor-scaled")["spec"]
    assert "replicas" not in scaled
    (container,) = scaled["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == "2"
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    assert "demo-nereid-executor-cpu" not in names


@pytest.mark.parametrize("release", ["1st", "team.models"])
def test_a_release_that_no_service_can_be_named_after(release: str) -> None:
    with pytest.raises(ValuesError, match="fullnameOverride: Services cannot be named"):
        render(_LEAST, release)
    assert render(_LEAST | {"fullnameOverride": "models"}, release)


def test_a_rollout_of_executors_waits_for_their_models() -> None:
    classes = {"cpu": {}, "large": {"progressDeadlineSeconds": 7200}}
    objects = render(_LEAST | {"executor": {"classes": classes}})
    for name, seconds in {"cpu": 1800, "large": 7200}.items():
        spec = named(objects, "Deployment", f"demo-nereid-executor-{name}")["spec"]
        assert spec["progressDeadlineSeconds"] == seconds
    # Gateways are ready once the models are.
    gateway = named(objects, "Deployment", "demo-nereid-gateway")["spec"]
    assert gateway["progressDeadlineSeconds"] == 1800


def test_state_has_a_name_of_its_own() -> None:
    # Cut, it could be another release's.
    with pytest.raises(
        ValuesError, match=r"scheduler.state.name: n+\.demo-nereid has more than 64"
    ):
        render(VALUE_SETS["explicit control, state in Redis"], namespace="n" * 63)


def test_another_strategy_leaves_the_defaults_behind() -> None:
    gpu = named(render(VALUE_SETS["accelerators"]), "Deployment", "demo-nereid-executor-gpu")
    assert gpu["spec"]["strategy"] == {"type": "Recreate"}


def test_notes_say_what_is_open() -> None:
    text = notes(_LEAST)
    assert "http://demo-nereid.prod.svc:8000" in text
    assert "model control as well" in text
    assert "helm -n prod test demo" in text
    hardened = notes(VALUE_SETS["hardened on IPv6"])
    assert "may use inference" in hardened
    assert "without credentials" not in notes(VALUE_SETS["clients' TLS and keys"])


def test_the_recipe_shows_what_helm_prints() -> None:
    shown = [text for language, text in blocks("kubernetes-s3") if not language]
    assert shown[0] in notes(VALUE_SETS["the recipe for S3"], "nereid", namespace="models")
