"""What holds for all pods of the chart, whatever its values."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.support.chart.objects import (
    COMPONENT,
    WORKLOADS,
    component,
    containers,
    labels,
    of_kind,
    pod_template,
    pods,
    selects,
)
from tests.support.chart.pod_security import restricted_violations
from tests.support.chart.rendering import Object, hooks, render
from tests.support.chart.value_sets import VALUE_SETS

pytestmark = pytest.mark.parametrize("name", VALUE_SETS)

_CLIENT_PORTS: Final = {8000, 8001}
_METRICS: Final = 8002
_DNS: Final = 53
# Who dials whom, and where: docs/architecture.md.
ARROWS: Final = {
    ("gateway", "scheduler", 8003),
    ("executor", "scheduler", 8003),
    ("scheduler", "scheduler", 8003),
    ("scheduler", "cache", 8004),
    ("cache", "redis", 6379),
}

# Of executors, by what the values name.
_WAYS_OUT: Final = {
    "object store": {443},
    "the recipe for S3": {443},
    "hardened on IPv6": {4317, 5353},
    "buckets of all kinds, traced": {443, 3128, 4317, 8443, 9000},
}


def test_nothing_can_do_more_than_it_needs(name: str) -> None:
    values = VALUE_SETS[name]
    objects = render(values)
    for where, spec in pods([*objects, *hooks(values)]):
        assert list(restricted_violations(spec)) == [], where
        # Otherwise a Service named nereid-http would set a flag of the gateway's.
        assert spec["enableServiceLinks"] is False
    for workload in of_kind(objects, *WORKLOADS):
        account = values.get(component(workload), {}).get("serviceAccount", {})
        mounted = pod_template(workload)["spec"]["automountServiceAccountToken"]
        assert mounted is account.get("automount", False)
    for each in containers(objects):
        context = each.container["securityContext"]
        assert context == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, each.where
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert not of_kind(objects, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")


def test_everything_has_limits(name: str) -> None:
    for each in containers(render(VALUE_SETS[name])):
        resources = each.container["resources"]
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(resources[kind]), each.where
        for volume in pod_template(each.workload)["spec"]["volumes"]:
            if "emptyDir" in volume and volume["name"] != "extra":
                assert "sizeLimit" in volume["emptyDir"], each.where


def test_everything_is_probed(name: str) -> None:
    for each in containers(render(VALUE_SETS[name])):
        if each.is_init or each.is_sidecar or component(each.workload) == "redis":
            continue
        ports = {port["name"]: port["containerPort"] for port in each.container["ports"]}
        assert ports["metrics"] == _METRICS
        paths = {
            probe: each.container[probe]["httpGet"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        live, ready = (
            {"path": f"/v2/health/{kind}", "port": "metrics"} for kind in ("live", "ready")
        )
        if name == "scaled to zero" and component(each.workload) == "gateway":
            # Or no request could come that starts an executor.
            ready = live
        assert paths == {"startupProbe": live, "livenessProbe": live, "readinessProbe": ready}


def test_everything_may_be_evicted_one_at_a_time(name: str) -> None:
    objects = render(VALUE_SETS[name])
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert all(each["spec"]["maxUnavailable"] == 1 for each in budgets)
    for workload in of_kind(objects, *WORKLOADS):
        matching = [each for each in budgets if selects(each["spec"]["selector"], labels(workload))]
        assert len(matching) == 1, workload["metadata"]["name"]


def test_pods_have_the_time_that_their_service_takes_to_end(name: str) -> None:
    for each in containers(render(VALUE_SETS[name])):
        arguments = dict(arg.partition("=")[::2] for arg in each.container.get("args", []))
        if each.is_init or "--exit-timeout-secs" not in arguments:
            continue
        pause = each.container.get("lifecycle", {}).get("preStop")
        pause_s = int(re.findall(r"\d+", str(pause["exec"]["command"]))[0]) if pause else 0
        assert (pause_s > 0) == (component(each.workload) == "gateway")
        spec = pod_template(each.workload)["spec"]
        needed_s = pause_s + int(arguments["--exit-timeout-secs"])
        assert spec["terminationGracePeriodSeconds"] >= needed_s + 10


def test_only_the_architectures_arrows_are_open(name: str) -> None:
    values = VALUE_SETS[name]
    objects = render(values)
    policies = of_kind(objects, "NetworkPolicy")
    if not values.get("networkPolicy", {}).get("enabled", True):
        assert policies == []
        return
    workloads = {component(each): each for each in of_kind(objects, *WORKLOADS)}
    rules = {each: _rules(policies, labels(workloads[each])) for each in workloads}
    opened = {
        (source, target, port)
        for source in workloads
        for target in workloads
        for port in _ports(rules[source]["egress"], "to", labels(workloads[target]))
        & _ports(rules[target]["ingress"], "from", labels(workloads[source]))
    }
    expected = {arrow for arrow in ARROWS if {*arrow[:2]} <= set(workloads)}
    assert opened == expected
    strangers = {each: _from_outside(rules[each]["ingress"]) for each in workloads}
    metrics = {each: {_METRICS} for each in workloads if each != "redis"}
    assert strangers == {
        **{each: set() for each in workloads},
        **metrics,
        "gateway": {_METRICS, *_CLIENT_PORTS},
    }
    # Models' code runs there.
    assert _to_anybody(rules["executor"]["egress"]) == {_DNS, *_WAYS_OUT.get(name, ())}


def _rules(policies: list[Object], pod_labels: dict[str, str]) -> dict[str, list[Any]]:
    """Both directions' rules for a pod, which some policy has to select in both."""
    mine = [each["spec"] for each in policies if selects(each["spec"]["podSelector"], pod_labels)]
    assert mine
    assert all(each["policyTypes"] == ["Ingress", "Egress"] for each in mine)
    return {
        direction: [rule for each in mine for rule in each.get(direction, [])]
        for direction in ("ingress", "egress")
    }


def _ports(rules: list[Any], side: str, pod_labels: dict[str, str]) -> set[int]:
    """Those that are open to a pod of the release by its labels."""
    return {
        port["port"]
        for rule in rules
        if any(
            "podSelector" in peer and selects(peer["podSelector"], pod_labels)
            for peer in rule.get(side, [])
        )
        for port in rule["ports"]
    }


def _from_outside(rules: list[Any]) -> set[int]:
    return {
        port["port"]
        for rule in rules
        if not any(
            COMPONENT in peer.get("podSelector", {}).get("matchLabels", {})
            for peer in rule.get("from", [])
        )
        for port in rule["ports"]
    }


def _to_anybody(rules: list[Any]) -> set[int]:
    return {port["port"] for rule in rules if not rule.get("to") for port in rule["ports"]}
