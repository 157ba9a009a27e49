"""`nereid serve`: the whole mesh on one machine, as child processes over unix sockets.

nereid.cli.serve.plan decides which children there are and which flags each gets. It runs in a
process of its own, because it imports all services' settings, and checks everything before anything
starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from nereid.cli.serve.greeting import Edges, greet
from nereid.cli.serve.supervisor import ChildSpec, Supervisor
from nereid.observability.logging import LogSettings, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


# One package that each service needs.
_REQUIRED = ("blake3", "httptools", "numpy")


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


def main(argv: Sequence[str]) -> int:
    """Start the mesh and keep it running until a signal; the exit code."""
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        text = f"{names} is missing: the extra [serve] brings all that is needed here"
        print(f"nereid serve: {text}", file=sys.stderr)
        return 2
    _raise_descriptor_limit()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_early)
    with tempfile.TemporaryDirectory(prefix="nereid-") as directory:
        planned = subprocess.run(
            [sys.executable, "-m", "nereid.cli.serve.plan"],
            # Not its argv: there may be secrets in it.
            input=json.dumps([directory, *argv]).encode(),
            stdout=subprocess.PIPE,
            check=False,
        )
        if planned.returncode or not planned.stdout.startswith(b"{"):
            sys.stdout.buffer.write(planned.stdout)
            return planned.returncode
        plan = _read_plan(planned.stdout)
        set_up_logging(plan.log, "nereid")
        return asyncio.run(_serve(plan))


def _raise_descriptor_limit() -> None:
    """Each client costs a descriptor: allow the children all that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _exit_early(_number: int, _frame: FrameType | None) -> NoReturn:
    """Before the children start: unwind, so that the directory and the plan process go, too."""
    sys.exit(0)


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
