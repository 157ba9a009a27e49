"""The command `nereid shadow`. Exit codes: 0 done, 1 the report has differences, 2 refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from nereid.cli.command_parser import CommandParser
from nereid.comparison.shadow import KEEP, read_shadow
from nereid.core.terminal import print_error, print_lines
from nereid_explain.server import CannotAskError, add_server_arguments, server_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

SUMMARY: Final = "copy a part of a model's requests to another version, and compare the responses"
_PROGRAM = "nereid shadow"
_DESCRIPTION = """\
Send copies of a part of a model's requests to another version, model or server, and compare its
responses with those that clients got. `report` shows what this gateway has compared.
"""
_EPILOG = """\
example: nereid shadow set digits --to version:4 --percent 10 --rules 'scores: top-k=5'. Exit codes:
0: done, or the report has no difference; 1: it has some; 2: refused, or not asked.
"""
_SET, _CLEAR, _REPORT = ACTIONS = ("set", "clear", "report")
_METHODS: Final = {_SET: "POST", _CLEAR: "DELETE", _REPORT: "GET"}


def main(argv: Sequence[str]) -> int:
    """Ask the mesh, print the shadow or its report, and return the exit code."""
    parser = make_parser()
    given = parser.parse_args(argv)
    document = _document(parser, given)
    server = server_of(parser, given)
    path = f"/v2/repository/models/{quote(given.model, safe='')}/shadow"
    try:
        response = server.call(_METHODS[given.action], path, document)
        lines = [json.dumps(response, indent=1)] if given.json else list(_lines(given, response))
    except (CannotAskError, OSError) as error:
        print_error(_PROGRAM, error)
        return 2
    print_lines(lines)
    return 1 if (response.get("report") or {}).get("differing") else 0


def _document(parser: CommandParser, given: argparse.Namespace) -> dict[str, Any] | None:
    """Return the shadow to set, or `None`; exit if the arguments are not valid."""
    options = {
        "to": given.to,
        "percent": given.percent,
        "rules": given.rules,
        "timeout_s": given.copy_timeout,
        "keep_inputs": given.keep_inputs,
    }
    document = {name: value for name, value in options.items() if value is not None}
    if given.action != _SET:
        if document:
            parser.error("--to and the flags beside it go with set")
        return None
    try:
        return read_shadow(document).document()
    except ValueError as error:
        parser.error(str(error))


def _lines(given: argparse.Namespace, response: dict[str, Any]) -> Iterator[str]:
    if response.get("shadow") is None:
        yield f"{given.model}: no shadow"
        return
    try:
        shadow = read_shadow(response["shadow"])
        yield f"{given.model}: {shadow} ({response.get('source')})"
    except ValueError as error:
        raise CannotAskError(f"the mesh responds with a shadow of another kind: {error}") from error
    if response.get("problem"):
        yield f"warning: {response['problem']}"
    if given.action != _REPORT:
        return
    report = response.get("report")
    if report is None:
        yield "no report yet"
        return
    from nereid.comparison.tally import text_report  # noqa: PLC0415 - imports numpy

    try:
        yield (
            f"all gateways: {response['compared']} compared, {response['differing']} differ; this"
            f" one has sent {report['sent']} copies:"
        )
        yield from text_report(report).splitlines()
    except (KeyError, TypeError) as error:
        raise CannotAskError(f"the mesh responds with a report of another kind: {error}") from error


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("action", choices=ACTIONS, help="set or clear a shadow, or report its differences")
    add("model", metavar="MODEL", help="the model whose requests are copied")
    add(
        "--to", metavar="TARGET",
        help="version:NUMBER, model:NAME, or url:grpc://HOST:PORT/NAME of another server",
    )  # fmt: skip
    add("--percent", type=float, metavar="N", help="share of the requests, 0 pauses (default: 100)")
    add("--rules", metavar="TEXT", help="when outputs count as equal, as 'scores: top-k=5'")
    add("--keep-inputs", choices=KEEP, help="what the report keeps of inputs (default: all)")
    add("--copy-timeout", type=float, metavar="S", help="time limit of a copy (default: 10)")
    add("--json", action="store_true", help="print one JSON document")
    add_server_arguments(parser, timeout_s=10)
    return parser
