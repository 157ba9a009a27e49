"""The command `nereid explain MODEL`. Exit codes: 0 no problem, 1 problems, 2 no response."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Final

from nereid.cli.command_parser import CommandParser
from nereid.core.terminal import print_error, print_lines
from nereid.diagnosis.causes import diagnose
from nereid.diagnosis.snapshot import snapshot_of
from nereid.facts.explanation import explanation
from nereid.facts.reasons import Statement, explain
from nereid_explain.server import (
    CannotAskError,
    add_metrics_argument,
    add_server_arguments,
    record_for,
    server_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUMMARY: Final = "say why a model of a running mesh is not ready, or does not batch"
_PROGRAM = "nereid explain"
_DESCRIPTION = """\
Say why a model of a running mesh is not ready or does not batch, from its live counters: one
statement a line, with the figures behind it and what to change. Asks over HTTP what any client may
ask: the index, the configuration, the statistics and the metrics page.
"""
_EPILOG = """\
exit codes: 0: nothing is wrong; 1: there are problems; 2: the mesh could not be asked. With --json
the output is one document, which docs/operators/explain.md describes.
"""
_WIDTH: Final = 100


def main(argv: Sequence[str]) -> int:
    """Ask the mesh, print statements, and return the exit code."""
    parser = make_parser()
    given = parser.parse_args(argv)
    if (given.name is None) == (given.model is None):
        parser.error("give the model's name: -m NAME")
    model, seconds = given.model or given.name, given.seconds
    server = server_of(parser, given, given.metrics_url)
    try:
        facts = server.look(model)
        if seconds:
            seconds = record_for(_PROGRAM, seconds)
            facts = server.look(model, facts)
    except (CannotAskError, OSError) as error:
        print_error(_PROGRAM, error)
        return 2
    statements = explain(facts)
    if seconds:
        for version in facts.versions:
            found = diagnose(snapshot_of(facts, version, seconds))
            statements += [diagnosis.statement(version.number) for diagnosis in found]
    problems = any(statement.problem for statement in statements)
    if given.json:
        print(json.dumps(explanation(facts, statements, seconds), indent=1))
    else:
        print_lines(_lines(statements))
    return 1 if problems else 0


def _lines(statements: Sequence[Statement]) -> Iterator[str]:
    version = ""
    for statement in statements:
        if statement.version != version:
            version = statement.version
            yield f"version {version}:"
        yield f"  {'problem: ' if statement.problem else ''}{statement.text} [{statement.code}]"
        if statement.advice:
            indent = " " * 6
            yield from textwrap.wrap(
                statement.advice,
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("-m", "--model", metavar="NAME", help="the model's name")
    parser.hide(add("name", nargs="?", metavar="NAME", help="the same as -m"))
    add_server_arguments(parser, timeout_s=10)
    add_metrics_argument(parser)
    add(
        "--seconds", type=float, default=0.0, metavar="S",
        help="look twice, so long apart, and count what happens in between (default: all since the"
        " model was loaded)",
    )  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")
    return parser
