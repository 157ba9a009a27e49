"""Runs a planned mesh: its children under supervision, and the greeting once they are ready."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass

from nereid.cli.serve.greeting import Edges, greet
from nereid.cli.serve.supervisor import ChildSpec, Supervisor
from nereid.observability.logging import LogSettings, set_up_logging


@dataclass(frozen=True)
class Plan:
    """What `python -m nereid.cli.serve.plan` prints, parsed."""

    children: tuple[ChildSpec, ...]
    exit_timeout_s: float
    # Those of the environment that no child inherits.
    secret_variables: frozenset[str]
    watchdog_timeout_s: float
    http_address: str | None
    grpc_address: str | None
    metrics_address: str | None
    # "yes", "mutual", or empty for HTTP without TLS.
    https: str
    log: LogSettings


def run_plan(text: bytes) -> int:
    """Run what `python -m nereid.cli.serve.plan` printed, until a signal; the exit code."""
    plan = _read_plan(text)
    set_up_logging(plan.log, "nereid")
    return asyncio.run(_serve(plan))


def _read_plan(text: bytes) -> Plan:
    plan = json.loads(text)
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
        plan["http_address"],
        plan["grpc_address"],
        plan["metrics_address"],
        plan["https"],
        LogSettings(**plan["log"]),
    )


async def _serve(plan: Plan) -> int:
    supervisor = Supervisor(
        plan.children, plan.exit_timeout_s, plan.secret_variables, plan.watchdog_timeout_s
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    edges = Edges(plan.http_address, plan.grpc_address, plan.metrics_address, plan.https)
    greeter = asyncio.create_task(greet(edges))
    code = await supervisor.run()
    greeter.cancel()
    await asyncio.gather(greeter, return_exceptions=True)
    return code
