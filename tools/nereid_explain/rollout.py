"""The command `nereid rollout`. Exit codes: 0 done, 1 gone back or aborted, 2 refused."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from nereid.cli.command_parser import CommandParser
from nereid.core.terminal import print_error, print_lines
from nereid.core.traffic.rollout_plan import ABORTED, BACK, DONE, RUNNING, read_rollout
from nereid.core.traffic.rollout_rules import parse_duration, parse_rules, parse_steps
from nereid_explain.server import CannotAskError, add_server_arguments, server_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nereid.core.traffic.rollout_plan import Rollout
    from nereid_explain.server import Server

SUMMARY: Final = "give a version its traffic by steps, and take it back if measurements say so"
_PROGRAM = "nereid rollout"
_DESCRIPTION = """\
Give a version of a model its share of the requests by steps. A step ends when all rules hold and
--every has passed; if a rule is broken, the version loses its requests. The command waits for the
end and prints each change.
"""
_EPILOG = """\
example: nereid rollout digits --to 4 --steps 1,10,50,100 --every 5m --if 'errors<0.1% p99<1.1x'.
Exit codes: 0: done, or the action was taken; 1: gone back or aborted; 2: refused, or not asked.
"""
_INTERVAL_S: Final = 1.0
# Without a change for so long, and for the time of a step, the command says what it waits for.
_QUIET_S: Final = 60.0
# Calls that fail for so long, as in a restart, end the wait.
_PATIENCE_S: Final = 60.0
_ENDS: Final = {DONE: 0, BACK: 1, ABORTED: 1}


def main(argv: Sequence[str]) -> int:
    """Begin a rollout or act on one, wait for its end, and return the exit code."""
    parser = make_parser()
    given = parser.parse_args(argv)
    server = server_of(parser, given)
    path = f"/v2/repository/models/{quote(given.model, safe='')}/rollout"
    body = _body(parser, given)
    try:
        document = server.call("GET" if body is None else "POST", path, body)
        if given.action is not None or given.detach:
            _print(document, given)
            return 0
        return _wait(server, path, document, given)
    except KeyboardInterrupt:
        print_error(_PROGRAM, "the mesh carries on with the rollout; --abort takes it back")
        raise
    except (CannotAskError, OSError) as error:
        print_error(_PROGRAM, error)
        return 2


def _body(parser: CommandParser, given: argparse.Namespace) -> dict[str, Any] | None:
    """Return the body of the call; `None` to show a rollout, and wait for its end."""
    plan = given.to, given.steps, given.every, given.rules
    if given.action is not None:
        if plan != (None,) * len(plan):
            parser.error(f"--{given.action} goes with no plan")
        return {"action": given.action}
    if plan == (None,) * len(plan):
        return None
    if None in plan:
        parser.error("a rollout needs --to, --steps, --every and --if")
    try:
        parse_rules(given.rules)
        return {
            "to": given.to,
            "steps": list(parse_steps(given.steps)),
            "every_seconds": parse_duration(given.every),
            "if": given.rules,
        }
    except ValueError as error:
        parser.error(str(error))


def _wait(server: Server, path: str, document: dict[str, Any], given: argparse.Namespace) -> int:
    shown: tuple[object, ...] = ()
    received_s = shown_s = time.monotonic()
    while True:
        rollout = _rollout_of(document)
        state = rollout.state, rollout.percent
        quiet_s = max(_QUIET_S, rollout.every_s)
        is_quiet = rollout.state == RUNNING and time.monotonic() - shown_s > quiet_s
        if state != shown or is_quiet:
            _print(document, given, waits=state == shown)
            shown, shown_s = state, time.monotonic()
        if rollout.state in _ENDS:
            return _ENDS[rollout.state]
        time.sleep(_INTERVAL_S)
        try:
            document = server.call("GET", path)
            received_s = time.monotonic()
        except (CannotAskError, OSError):
            if time.monotonic() - received_s > _PATIENCE_S:
                raise


def _rollout_of(document: dict[str, Any]) -> Rollout:
    """Return the rollout in a response. Raises CannotAskError if it has none."""
    try:
        return read_rollout(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CannotAskError(f"the mesh responds with no rollout: {error!r}") from error


def _print(document: dict[str, Any], given: argparse.Namespace, *, waits: bool = False) -> None:
    """Print the state. waits: with what it waits for."""
    rollout = _rollout_of(document)
    if given.json:
        print_lines([json.dumps(document)])
        return
    line = f"{given.model}: version {rollout.to}: {rollout.state}, {rollout.percent}%"
    if rollout.reason:
        line += f": {rollout.reason}"
    if waits:
        line += f", waits: {describe_wait(document)}"
    print_lines([line])


def describe_wait(document: dict[str, Any]) -> str:
    """Return what a running rollout waits for."""
    if "waits_for" in document:
        return str(document["waits_for"])
    try:
        undecided = [rule for rule in document.get("rules", ()) if rule["is"] != "holds"]
        return "; ".join(f"{rule['rule']}: {rule['figures']}" for rule in undecided) or "its time"
    except (KeyError, TypeError) as error:
        raise CannotAskError(f"the mesh responds with no rules: {error!r}") from error


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model's name; alone: wait for the end of its rollout")
    add("--to", type=int, metavar="VERSION", help="the version that gets the requests")
    add("--steps", metavar="PERCENTS", help="its shares, such as 1,10,50,100")
    add("--every", metavar="TIME", help="how long each step lasts at least, such as 5m")
    add(
        "--if", dest="rules", metavar="RULES",
        help="'errors<0.1%% p99<1.1x difference<1e-3': errors beyond those of the versions in"
        " service, p50, p95 or p99 by their factor (x) or in ms, and a shadow's difference",
    )  # fmt: skip
    for action, text in (
        ("pause", "stay at the present step"),
        ("resume", "go on, and measure the step anew"),
        ("abort", "take the version's requests away"),
    ):
        add(f"--{action}", dest="action", action="store_const", const=action, help=text)
    add("--detach", action="store_true", help="do not wait for the end")
    add("--json", action="store_true", help="print one JSON document a line")
    add_server_arguments(parser, timeout_s=10)
    return parser
