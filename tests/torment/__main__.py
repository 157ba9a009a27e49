"""A mesh in torment: clients, faults by a seed, and whether the contract was kept.

    python -m tests.torment --seed 7 --minutes 2 --faults kill,partition

The schedule of the faults depends on the seed, the faults and the shape of the mesh alone. Exit
status 1: the contract was broken; the histories, the logs of all services and the command that
runs the same campaign again are in the output directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import sys
import time
from pathlib import Path

from tests.torment import hosts, report
from tests.torment.campaign import Campaign, Settings, Verdict
from tests.torment.contract import MODELS
from tests.torment.faults import KINDS, selected
from tests.torment.services import Shape


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.torment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--seed", type=int, default=int(time.time()), help="decides the faults")
    add("--minutes", type=float, default=2.0, help="how long faults are made")
    add("--requests", type=int, default=0, help="end after so many requests, if that is earlier")
    add("--faults", default="all", help=f"with commas, or the begins of: {', '.join(KINDS)}; none")
    add("--every", type=float, default=4.0, help="seconds between two faults, on average")
    add("--gateways", type=int, default=2)
    add("--schedulers", type=int, default=1)
    add("--executors", type=int, default=2)
    add("--processes", type=int, default=2, help="of clients")
    add("--clients", type=int, default=12, help="in each of these processes")
    add("--pause-ms", type=float, default=20.0, help="between two requests of a client, on average")
    add("--models", default=",".join(MODELS))
    add("--flag", action="append", default=[], help="for every service; may be given several times")
    add("--output", type=Path, default=Path("build/torment"))
    add("--no-isolation", action="store_true", help="no namespaces: all on the loopback")
    return parser


def _settings(arguments: argparse.Namespace, *, isolated: bool) -> Settings:
    faults = {"all": list(KINDS), "none": []}.get(arguments.faults)
    return Settings(
        seed=arguments.seed,
        output=arguments.output,
        minutes=arguments.minutes,
        requests=arguments.requests,
        faults=selected(arguments.faults.split(",")) if faults is None else faults,
        every_s=arguments.every,
        shape=Shape(arguments.gateways, arguments.schedulers, arguments.executors),
        processes=arguments.processes,
        clients=arguments.clients,
        pause_s=arguments.pause_ms / 1000,
        isolated=isolated,
        models=arguments.models.split(","),
        flags=arguments.flag,
    )


def _show(verdict: Verdict, settings: Settings, command: str) -> None:
    parts = [report.requests_table(verdict.evidence), report.faults_table(verdict.evidence)]
    parts += [f"left out: {kind}, since {why}" for kind, why in verdict.left_out.items()]
    if verdict.violations:
        parts.append(report.violations_text(verdict.violations))
    parts += verdict.complaints
    if verdict.is_good:
        parts.append("The contract was kept.")
    else:
        parts.append(f"The contract was BROKEN. The same faults again:\n\n    {command}\n")
    text = "\n\n".join(parts)
    faults = (
        f"{each.fault}: from {each.began_s:.3f} to {each.ended_s:.3f} s"
        for each in verdict.evidence.disturbances
    )
    more = "\n".join([*faults, *verdict.notes, *map(str, verdict.violations)])
    (settings.output / "report.txt").write_text(f"{text}\n\n{command}\n\n{more}\n")
    print(f"\n{text}\n\nMore in {settings.output}")


def main(argv: list[str]) -> int:
    if "--seed" not in " ".join(argv):
        argv = ["--seed", str(int(time.time())), *argv]
    arguments = _parser().parse_args(argv)
    isolated = not arguments.no_isolation
    if isolated and not hosts.is_inside():
        if hosts.can_isolate():
            return hosts.enter("tests.torment", argv)
        isolated = False
    if hosts.is_inside():
        hosts.become_init()
    settings = _settings(arguments, isolated=isolated)
    command = shlex.join([sys.executable, "-m", "tests.torment", *argv])
    print(command, flush=True)
    verdict = asyncio.run(Campaign(settings).run())
    _show(verdict, settings, command)
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
