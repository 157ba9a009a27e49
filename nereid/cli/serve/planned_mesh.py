"""Runs a planned mesh: its children under supervision, and the greeting once they are ready."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nereid.cli.serve.greeting import Edges, greet
from nereid.cli.serve.supervisor import ChildSpec, Supervisor
from nereid.gateway_group import group_environ
from nereid.observability.logging import LogSettings, set_up_logging
from nereid.rpc.net.shared_ports import SharedPorts

_START_ERROR_CODE = 2


@dataclass(frozen=True)
class Plan:
    """What `python -m nereid.cli.serve.plan` prints, parsed."""

    children: tuple[ChildSpec, ...]
    exit_timeout_s: float
    # Those of the environment that no child inherits.
    secret_variables: frozenset[str]
    watchdog_timeout_s: float
    # By "http", "grpc" and "metrics", those that are served.
    addresses: dict[str, str]
    # Those of them that other servers may use as well.
    reused: frozenset[str]
    # "yes", "mutual", or empty for HTTP without TLS.
    https: str
    log: LogSettings
    # Names of the gateways that serve the addresses together, by their numbers; empty: one serves
    # alone.
    group: tuple[str, ...]
    # Theirs.
    group_directory: str


def run_plan(text: bytes) -> int:
    """Run what `python -m nereid.cli.serve.plan` printed, until a signal; the exit code."""
    plan = _read_plan(json.loads(text))
    set_up_logging(plan.log, "nereid")
    return asyncio.run(_serve(plan))


def _read_plan(plan: dict[str, Any]) -> Plan:
    children = tuple(
        ChildSpec(
            child["name"],
            (sys.executable, *child["argv"]),
            child["stage"],
            child["secrets"],
            child["may_block"],
        )
        for child in plan["children"]
    )
    return Plan(
        children,
        plan["exit_timeout_s"],
        frozenset(plan["secret_variables"]),
        plan["watchdog_timeout_s"],
        plan["addresses"],
        frozenset(plan["reused"]),
        plan["https"],
        LogSettings(**plan["log"]),
        tuple(plan["group"]),
        plan["group_directory"],
    )


async def _serve(plan: Plan) -> int:
    if not plan.group:
        return await _supervise(plan)
    ports = SharedPorts(len(plan.group))
    try:
        addresses = {
            name: await ports.bind(name, address, reuse_port=name in plan.reused)
            for name, address in plan.addresses.items()
        }
    except OSError as error:
        ports.close()
        sys.stderr.write(f"nereid serve: cannot listen: {error}\n")
        return _START_ERROR_CODE
    try:
        return await _supervise(_with_group(plan, addresses, ports), ports)
    finally:
        ports.close()


def _with_group(plan: Plan, addresses: dict[str, str], ports: SharedPorts) -> Plan:
    """The plan with the ports for its gateways, at the addresses that were bound."""
    Path(plan.group_directory).mkdir(mode=0o700)
    size = len(plan.group)
    environs = {
        name: group_environ(number, size, plan.group_directory, ports)
        for number, name in enumerate(plan.group)
    }
    children = tuple(
        replace(child, environ=environs[child.name], descriptors=ports.descriptors)
        if child.name in environs
        else child
        for child in plan.children
    )
    return replace(plan, children=children, addresses=addresses)


async def _supervise(plan: Plan, ports: SharedPorts | None = None) -> int:
    def on_ended(child: ChildSpec) -> None:
        if ports is not None and child.name in plan.group:
            ports.on_member_ended(plan.group.index(child.name))

    supervisor = Supervisor(
        plan.children,
        plan.exit_timeout_s,
        plan.secret_variables,
        plan.watchdog_timeout_s,
        on_ended,
    )

    def stop() -> None:
        if ports is not None:
            # From when the last gateway stops to accept, connections are refused.
            ports.close()
        supervisor.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    at = plan.addresses.get
    edges = Edges(at("http"), at("grpc"), at("metrics"), plan.https)
    greeter = asyncio.create_task(greet(edges))
    code = await supervisor.run()
    greeter.cancel()
    await asyncio.gather(greeter, return_exceptions=True)
    return code
