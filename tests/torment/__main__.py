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

from tests.torment import hosts, report, shapes
from tests.torment.campaign import Campaign, Outcomes, Settings
from tests.torment.checker import AFTERMATH_S
from tests.torment.contract import MODELS
from tests.torment.disruptions import KINDS, selected
from tests.torment.services import Shape


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.torment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--seed", type=int, default=int(time.time()), help="decides the faults and the load")
    add("--minutes", type=float, default=2.0, help="how long faults are made")
    add("--requests", type=int, default=0, help="end after so many requests, if that is earlier")
    add(
        "--faults",
        default="all",
        help=f"with commas, or the begins of: {', '.join(KINDS)}; all; none",
    )
    add("--every", type=float, default=4.0, help="seconds between two faults, on average")
    add("--most", type=int, default=0, help="end after so many faults")
    add("--pace", type=int, default=40, help="requests that end between two faults, at least")
    add(
        "--aftermath",
        type=float,
        default=AFTERMATH_S,
        help="for how many seconds failures may be those of a fault that is over",
    )
    add("--gateways", type=int, default=2)
    add("--schedulers", type=int, default=1)
    add("--executors", type=int, default=2)
    add("--processes", type=int, default=2, help="of clients")
    add("--clients", type=int, default=11, help="in each of these processes")
    add("--pause-ms", type=float, default=20.0, help="between two requests of a client, on average")
    add(
        "--shape",
        default="all",
        help="of the load, by turns: with commas, of "
        f"{', '.join(shapes.SHAPES)}; all; none, which is --clients with --pause-ms",
    )
    add("--models", default=",".join(MODELS))
    add("--flag", action="append", default=[], help="for every service; may be given several times")
    add(
        "--tree",
        type=Path,
        action="append",
        default=[],
        help="a checkout to run the services of; with several a restarted service takes the next",
    )
    add("--output", type=Path, default=Path("build/torment"))
    add("--no-isolation", action="store_true", help="no namespaces: all on the loopback")
    return parser


def _settings(arguments: argparse.Namespace, *, isolated: bool) -> Settings:
    disruptions = [] if arguments.faults == "none" else selected(arguments.faults.split(","))
    return Settings(
        seed=arguments.seed,
        output=arguments.output,
        minutes=arguments.minutes,
        requests=arguments.requests,
        disruptions=disruptions,
        every_s=arguments.every,
        most=arguments.most,
        pace=arguments.pace,
        aftermath_s=arguments.aftermath,
        shape=Shape(arguments.gateways, arguments.schedulers, arguments.executors),
        processes=arguments.processes,
        clients=arguments.clients,
        pause_s=arguments.pause_ms / 1000,
        isolated=isolated,
        models=arguments.models.split(","),
        shapes=[] if arguments.shape == "none" else shapes.selected(arguments.shape.split(",")),
        flags=arguments.flag,
        trees=[each.resolve() for each in arguments.tree],
    )


def _show(outcomes: Outcomes, settings: Settings, command: str) -> None:
    evidence = outcomes.evidence
    parts = [
        report.requests_table(evidence),
        report.load_table(evidence, outcomes.load),
        report.disruptions_table(evidence),
    ]
    parts += [f"left out: {kind}, since {why}" for kind, why in outcomes.left_out.items()]
    if outcomes.violations:
        parts.append(report.violations_text(outcomes.violations))
    parts += outcomes.complaints
    if outcomes.is_good:
        parts.append("The contract was kept.")
    else:
        parts.append(f"The contract was BROKEN. The same faults again:\n\n    {command}\n")
    text = "\n\n".join(parts)
    disruptions = (
        f"{each.disruption}: from {each.began_s:.3f} to {each.ended_s:.3f} s"
        for each in outcomes.evidence.occurrences
    )
    more = "\n".join([*disruptions, *outcomes.notes, *map(str, outcomes.violations)])
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
    outcomes = asyncio.run(Campaign(settings).run())
    _show(outcomes, settings, command)
    return 0 if outcomes.is_good else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
