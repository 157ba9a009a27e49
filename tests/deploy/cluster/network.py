"""What a cluster's network does for pods: names (CoreDNS), Services (kube-proxy) and policies.

Each pod has a network namespace of its own, and a netfilter there, which has the rules that the
node's has in a cluster: Services' addresses become those of ready pods, one at random for each new
connection, and what no NetworkPolicy allows is dropped.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
from collections.abc import Callable
from typing import Final, cast

from tests.deploy.cluster.pod import Pod
from tests.support.chart.objects import of_kind, selects
from tests.support.chart.rendering import NAMESPACE, Object
from tests.torment.hosts import CLIENT_ADDRESS, Host

_DOMAIN: Final = ".svc.cluster.local"
_NXDOMAIN: Final = 3
_A: Final = 1
_TTL_S: Final = 5


class Service:
    """A Service, with an address of its own unless it is headless."""

    def __init__(self, made: Object, address: str) -> None:
        spec = made["spec"]
        self.name: str = made["metadata"]["name"]
        self.address = None if spec.get("clusterIP") == "None" else address
        # (port, the name of the pods' port)
        self.ports = {each["name"]: (each["port"], each["targetPort"]) for each in spec["ports"]}
        self._selector = {"matchLabels": spec["selector"]}
        self._has_all = spec.get("publishNotReadyAddresses", False)

    def endpoints(self, pods: list[Pod]) -> list[Pod]:
        return [
            each
            for each in pods
            if selects(self._selector, each.labels)
            and not each.is_over
            and (self._has_all or (each.is_ready and not each.is_terminating))
        ]


class Network:
    """Services and policies, applied to whatever pods there are."""

    def __init__(self, objects: list[Object], hosts: list[Host]) -> None:
        """hosts: that are no pods."""
        self.pods: list[Pod] = []
        self.services = {
            each["metadata"]["name"]: Service(each, f"10.96.0.{number}")
            for number, each in enumerate(of_kind(objects, "Service"), 10)
        }
        self._policies = [each["spec"] for each in of_kind(objects, "NetworkPolicy")]
        self._hosts = hosts
        # By address, so that what is the same is not applied again.
        self._applied: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._is_outdated = asyncio.Event()

    def on_change(self) -> None:
        self._is_outdated.set()

    async def run(self) -> None:
        """Serve names, and follow changes."""
        loop = asyncio.get_running_loop()
        at = (CLIENT_ADDRESS, 53)
        await loop.create_datagram_endpoint(lambda: _Names(self.addresses), local_addr=at)
        while True:
            await self._is_outdated.wait()
            self._is_outdated.clear()
            await self.apply()

    def addresses(self, name: str) -> list[str] | None:
        """Of a Service by its full name; None: there is no such name."""
        if not name.endswith(_DOMAIN):
            return None
        service_name, _, namespace = name.removesuffix(_DOMAIN).partition(".")
        service = self.services.get(service_name)
        if namespace != NAMESPACE or not service:
            return None
        if service.address:
            return [service.address]
        return [each.host.address for each in service.endpoints(self.pods)]

    async def apply(self) -> None:
        """Give every host the rules that it has to have now."""
        changed: list[tuple[Host, Pod | None, str]] = []
        async with self._lock:
            pods = [(pod.host, pod) for pod in self.pods if not pod.is_over]
            for host, pod in [*((host, None) for host in self._hosts), *pods]:
                text = self._rules(pod)
                if self._applied.get(host.address) != text:
                    self._applied[host.address] = text
                    changed.append((host, pod, text))
            errors = await asyncio.gather(
                *(asyncio.to_thread(_restore, host, text) for host, _, text in changed)
            )
            for (_, pod, text), error in zip(changed, errors, strict=True):
                # One that has ended meanwhile has no namespace any more.
                if error and not (pod and pod.is_over):
                    raise RuntimeError(f"{error}\n{text}")

    def _rules(self, pod: Pod | None) -> str:
        filters, translations = [], []
        for service in self.services.values():
            if not service.address:
                continue
            endpoints = service.endpoints(self.pods)
            for port, target in service.ports.values():
                match = f"-A OUTPUT -d {service.address} -p tcp --dport {port}"
                if not endpoints:
                    filters.append(f"{match} -j REJECT --reject-with tcp-reset")
                for number, each in enumerate(endpoints):
                    chance = f"{1 / (len(endpoints) - number):.6f}"
                    translations.append(
                        f"{match} -m statistic --mode random --probability {chance}"
                        f" -j DNAT --to-destination {each.host.address}:{each.port(target)}"
                    )
        ingress, egress = "ACCEPT", "ACCEPT"
        policies = [
            each for each in self._policies if pod and selects(each["podSelector"], pod.labels)
        ]
        if policies:
            ingress = egress = "DROP"
            established = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
            filters += ["-A INPUT -i lo -j ACCEPT", "-A OUTPUT -o lo -j ACCEPT"]
            filters += [f"-A INPUT {established}", f"-A OUTPUT {established}"]
            # The kubelet may always come in.
            filters.append(f"-A INPUT -s {CLIENT_ADDRESS} -j ACCEPT")
            for policy in policies:
                filters += self._allowed(policy["ingress"], "from", "-A INPUT -s")
                # A policy without rules for a direction allows nothing in it.
                filters += self._allowed(policy.get("egress", []), "to", "-A OUTPUT -d")
        lines = ["*nat", ":OUTPUT ACCEPT", *translations, "COMMIT"]
        lines += ["*filter", f":INPUT {ingress}", f":OUTPUT {egress}", *filters, "COMMIT"]
        return "\n".join([*lines, ""])

    def _allowed(self, rules: list[Object], side: str, match: str) -> list[str]:
        found = []
        for rule in rules:
            peers = ["0.0.0.0/0"]
            if rule.get(side):
                peers = [
                    each.host.address
                    for peer in rule[side]
                    for each in self.pods
                    if selects(peer["podSelector"], each.labels) and not each.is_over
                ]
            for port in rule["ports"]:
                at = f"-p {port['protocol'].lower()} --dport {port['port']}"
                found += [f"{match} {peer} {at} -j ACCEPT" for peer in peers]
        return found


def _restore(host: Host, text: str) -> str:
    """Replace a host's rules; what is wrong with that."""
    argv = host.command("iptables-restore")
    ended = subprocess.run(argv, input=text.encode(), capture_output=True, check=False)
    return ended.stderr.decode() if ended.returncode else ""


class _Names(asyncio.DatagramProtocol):
    """A name server for names of Services."""

    def __init__(self, addresses: Callable[[str], list[str] | None]) -> None:
        self._addresses = addresses

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode("ascii", "replace"))
            at += 1 + length
        (kind,) = struct.unpack_from(">H", data, at + 1)
        found = self._addresses(".".join(labels).lower())
        records = [
            struct.pack(">HHHIH", 0xC00C, _A, 1, _TTL_S, 4) + socket.inet_aton(each)
            for each in found or ()
            if kind == _A
        ]
        flags = 0x8580 | (_NXDOMAIN if found is None else 0)
        head = data[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        self._transport.sendto(head + data[12 : at + 5] + b"".join(records), addr)
