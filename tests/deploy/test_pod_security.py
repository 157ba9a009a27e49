"""The checker of the Pod Security Standard finds each thing that it forbids."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.chart.objects import pods
from tests.support.chart.pod_security import restricted_violations
from tests.support.chart.rendering import Object, render
from tests.support.chart.value_sets import VALUE_SETS

# Fields of a pod's spec, or of its first container, and what they violate there.
FORBIDDEN: Final[dict[str, tuple[str, Object, str]]] = {
    "the host's network": ("pod", {"hostNetwork": True}, "hostNetwork"),
    "the host's processes": ("pod", {"hostPID": True}, "hostPID"),
    "the host's memory": ("pod", {"hostIPC": True}, "hostIPC"),
    "a path of the host's": (
        "pod",
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        "volumes: v: hostPath",
    ),
    "the kernel's settings": (
        "pod context",
        {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
        "sysctls: kernel.msgmax",
    ),
    "root": ("pod context", {"runAsUser": 0}, "runAsUser"),
    "perhaps root": ("pod context", {"runAsNonRoot": None}, "gateway: runAsNonRoot"),
    "every system call": ("pod context", {"seccompProfile": {}}, "gateway: seccompProfile"),
    "a privileged container": ("context", {"privileged": True}, "gateway: privileged"),
    "more than its parent": (
        "context",
        {"allowPrivilegeEscalation": True},
        "gateway: allowPrivilegeEscalation",
    ),
    "capabilities": ("context", {"capabilities": {}}, "gateway: capabilities.drop"),
    "another capability": (
        "context",
        {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
        "gateway: capabilities.add",
    ),
    "all of /proc": ("context", {"procMount": "Unmasked"}, "gateway: procMount"),
    "a container's root": ("context", {"runAsUser": 0}, "gateway: runAsUser"),
    "a port of the host's": ("container", {"ports": [{"hostPort": 80}]}, "gateway: hostPort"),
}


@pytest.fixture
def gateway() -> Any:
    return dict(pods(render(VALUE_SETS["least"])))["demo-nereid-gateway"]


def test_the_charts_own_pod_has_none(gateway: Object) -> None:
    assert list(restricted_violations(gateway, frozenset())) == []


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_is_forbidden_is_found(gateway: Object, name: str) -> None:
    place, fields, violation = FORBIDDEN[name]
    (container,) = gateway["containers"]
    target = {
        "pod": gateway,
        "pod context": gateway["securityContext"],
        "container": container,
        "context": container["securityContext"],
    }[place]
    target |= fields
    found = list(restricted_violations(gateway, frozenset()))
    assert violation in found


def test_init_containers_are_looked_at(gateway: Object) -> None:
    del gateway["initContainers"][0]["securityContext"]["capabilities"]
    assert list(restricted_violations(gateway)) == ["token: capabilities.drop"]
