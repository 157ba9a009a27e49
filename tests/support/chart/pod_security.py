"""Kubernetes' Pod Security Standard "restricted", as far as pods without Windows go. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_VOLUMES: Final = frozenset(
    [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ]
)
# The chart mounts what its values name: these volumes are of the user's choice.
_CHOSEN: Final = frozenset(("hostPath", "nfs"))
_SYSCTLS: Final = frozenset(
    (
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
    )
)
_SECCOMP: Final = ("RuntimeDefault", "Localhost")


def restricted_violations(spec: dict[str, Any], chosen: frozenset[str] = _CHOSEN) -> Iterator[str]:
    """Return what the standard forbids in a pod's spec. chosen: volumes that are allowed still."""
    context = spec.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield key
    for volume in spec.get("volumes", ()):
        if not (kinds := set(volume) - {"name"}) <= _VOLUMES | chosen:
            yield f"volumes: {volume['name']}: {', '.join(kinds)}"
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctls: {sysctl['name']}"
    if context.get("runAsUser") == 0:
        yield "runAsUser"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for violation in _of_container(container, context):
            yield f"{container['name']}: {violation}"


def _of_container(container: dict[str, Any], of_pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    capabilities = own.get("capabilities", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if "ALL" not in capabilities.get("drop", ()):
        yield "capabilities.drop"
    if not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
        yield "capabilities.add"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if own.get("runAsUser") == 0:
        yield "runAsUser"
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot"
    seccomp = own.get("seccompProfile", of_pod.get("seccompProfile", {}))
    if seccomp.get("type") not in _SECCOMP:
        yield "seccompProfile"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "hostPort"
