"""What users add to the chart's pods, Services and objects, and where their images come from."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.support.chart.objects import (
    WORKLOADS,
    component,
    containers,
    named,
    of_kind,
    pod_template,
)
from tests.support.chart.rendering import ROOT, VERSION, Object, hooks, render
from tests.support.chart.value_sets import VALUE_SETS

_LEAST: Final = VALUE_SETS["least"]
_DUAL: Final = VALUE_SETS["dual-stack with sidecars"]


def images(values: Object) -> dict[str, str]:
    """Of the components' own containers, and of the test's."""
    found = {
        component(each.workload): each.container["image"]
        for each in containers(render(values))
        if not each.is_sidecar and each.container["image"] != "registry.example/sidecar:1"
    }
    (test,) = hooks(values)
    return {**found, "test": test["spec"]["containers"][0]["image"]}


def specs(values: Object) -> dict[str, Object]:
    """Pod specs by component."""
    workloads = of_kind(render(values), *WORKLOADS)
    return {component(each): pod_template(each)["spec"] for each in workloads}


@pytest.mark.parametrize("registry", ["registry.example/ml", "registry.example/ml/"])
def test_the_registry_is_that_of_the_meshs_images(registry: str) -> None:
    found = images(_LEAST | {"images": {"registry": registry}})
    assert found == {
        "gateway": f"registry.example/ml/nereid-gateway:{VERSION}",
        "scheduler": f"registry.example/ml/nereid-scheduler:{VERSION}",
        "executor": f"registry.example/ml/nereid-executor:{VERSION}",
        "cache": f"registry.example/ml/nereid-cache:{VERSION}",
        "redis": "docker.io/library/redis:7.4.5-bookworm",
        "test": f"registry.example/ml/nereid-gateway:{VERSION}",
    }


def test_a_component_may_have_a_registry_of_its_own() -> None:
    values = {
        "redis": {"image": {"registry": "mirror.example/", "repository": "redis"}},
        "cache": {"image": {"registry": "other.example", "tag": "2"}},
    }
    found = images(_LEAST | values)
    assert found["redis"] == "mirror.example/redis:7.4.5-bookworm"
    assert found["cache"] == "other.example/nereid-cache:2"
    assert found["gateway"] == f"registry.example/nereid-gateway:{VERSION}"


def test_a_mirror_is_for_everything() -> None:
    found = images(VALUE_SETS["a mirror, and TLS behind the Gateway"])
    assert found["redis"] == "mirror.example/all/library/redis:7.4.5-bookworm"
    assert found["executor"] == f"mirror.example/all/nereid-executor:{VERSION}"
    assert all(each.startswith("mirror.example/all/") for each in found.values())


def test_images_on_the_nodes_need_no_registry() -> None:
    assert images(VALUE_SETS["images on the nodes"])["gateway"] == f"nereid-gateway:{VERSION}"


def test_sidecars_and_init_containers_stand_beside_the_charts() -> None:
    found = {
        name: tuple(
            [each["name"] for each in spec.get(kind, ())]
            for kind in ("initContainers", "containers")
        )
        for name, spec in specs(_DUAL).items()
    }
    assert found == {
        "gateway": (["token"], ["gateway", "proxy"]),
        "scheduler": (["wait"], ["scheduler"]),
        "executor": (["token", "agent"], ["executor"]),
        "cache": (["token"], ["cache", "exporter"]),
        "redis": (["wait"], ["redis", "exporter"]),
    }


def test_names_are_resolved_as_the_values_say() -> None:
    found = {
        name: (spec.get("dnsPolicy"), spec.get("dnsConfig")) for name, spec in specs(_DUAL).items()
    }
    assert found == {
        "gateway": (None, {"options": [{"name": "ndots", "value": "2"}]}),
        "scheduler": (None, None),
        "executor": ("None", {"nameservers": ["fd00::a"]}),
        "cache": (None, None),
        "redis": ("Default", None),
    }


def test_each_component_has_a_user_of_its_own_and_needs_no_shell_of_its_image() -> None:
    found = specs(_LEAST)
    users = {name: spec["securityContext"]["runAsUser"] for name, spec in found.items()}
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    stated = dict(
        re.findall(
            r"^FROM service AS (\w+)$.*?^USER (\d+):10001$", dockerfile, re.MULTILINE | re.DOTALL
        )
    )
    assert {name: str(user) for name, user in users.items() if name != "redis"} == stated
    assert len(set(users.values())) == 5
    (test,) = hooks(_LEAST)
    for each in (spec for name, spec in {**found, "test": test["spec"]}.items() if name != "redis"):
        for container in (*each.get("initContainers", ()), *each["containers"]):
            hook = container.get("lifecycle", {}).get("preStop", {"exec": {}})["exec"]
            for words in (container.get("command"), hook.get("command")):
                assert words is None or words[0] in ("python", "nereid")


def test_a_cluster_may_choose_the_users() -> None:
    for each in specs(VALUE_SETS["a strict platform"]).values():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(each["securityContext"])


def test_settings_of_probes_are_merged_with_the_charts() -> None:
    gateway, redis = (specs(_DUAL)[name]["containers"][0] for name in ("gateway", "redis"))
    assert gateway["readinessProbe"] == {
        "httpGet": {"path": "/v2/health/ready", "port": "metrics"},
        "periodSeconds": 1,
        "timeoutSeconds": 3,
        "failureThreshold": 9,
    }
    assert gateway["startupProbe"]["failureThreshold"] == 120
    assert redis["startupProbe"]["failureThreshold"] == 600
    assert redis["startupProbe"]["periodSeconds"] == 2
    assert redis["startupProbe"]["exec"] == redis["livenessProbe"]["exec"]


def test_services_have_the_families() -> None:
    families = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]}
    services = of_kind(render(_DUAL | {"services": families}), "Service")
    assert len(services) == 5
    for each in services:
        assert each["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
        assert each["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    for each in of_kind(render(_LEAST), "Service"):
        assert not {"ipFamilies", "ipFamilyPolicy"} & set(each["spec"])


def test_the_load_balancers_class() -> None:
    service = named(render(_DUAL), "Service", "demo-nereid")["spec"]
    assert service["loadBalancerClass"] == "service.k8s.aws/nlb"
    assert (
        "loadBalancerClass" not in named(render(_DUAL), "Service", "demo-nereid-gateways")["spec"]
    )


def test_volumes_may_be_parts_of_others() -> None:
    def parts(values: Object, name: str) -> dict[str, str]:
        mounts: list[Any] = specs(values)[name]["containers"][0]["volumeMounts"]
        return {each["mountPath"]: each["subPath"] for each in mounts if "subPath" in each}

    assert parts(VALUE_SETS["polled volumes"], "executor") == {"/nfs/": "shared"}
    assert parts(_DUAL, "redis") == {"/data": "redis"}
    assert parts(_DUAL, "scheduler") == {"/state": "nereid"}
    assert parts(VALUE_SETS["buckets of all kinds, traced"], "executor") == {"/cache": "demo"}


def test_more_objects_are_templates() -> None:
    objects = render(VALUE_SETS["a mirror, and TLS behind the Gateway"])
    assert named(objects, "ConfigMap", "demo-more")["data"] == {"a": "b"}
    assert named(objects, "ConfigMap", "demo-nereid-text")["data"] == {"port": "8000"}


def test_gateways_reach_what_serves_tls_by_tls() -> None:
    objects = render(VALUE_SETS["a mirror, and TLS behind the Gateway"])
    policy = named(objects, "BackendTLSPolicy", "demo-nereid")
    assert policy["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert policy["spec"] == {
        "targetRefs": [
            {"group": "", "kind": "Service", "name": "demo-nereid", "sectionName": "grpc"}
        ],
        "validation": {
            "hostname": "models.example",
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}],
        },
    }
    service = named(objects, "Service", "demo-nereid")
    assert "grpc" in {port["name"] for port in service["spec"]["ports"]}
    (route,) = of_kind(objects, "GRPCRoute")
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "demo-nereid", "port": 8001}]
