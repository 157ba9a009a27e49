"""The command `nereid traffic`. Exit codes: 0 done, 2 the mesh refused it or gave no response."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from nereid.cli.command_parser import CommandParser
from nereid.core.terminal import print_error, print_lines
from nereid.core.traffic.weights import make_traffic, parse_weights, read_traffic
from nereid_explain.server import CannotAskError, add_server_arguments, server_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMMARY: Final = "show or set how a model's requests are divided among its versions"
_PROGRAM = "nereid traffic"
_DESCRIPTION = """\
Divide the requests that name no version among the versions of a model, by weights. Without weights
the command shows those that there are. Callers that --by keeps together stay with one version.
"""
_EPILOG = """\
example: nereid traffic digits 3=90 4=10 --by header:x-user. Exit codes: 0: done; 2: the mesh has
refused it, or could not be asked.
"""


def main(argv: Sequence[str]) -> int:
    """Ask the mesh, print the traffic, and return the exit code."""
    parser = make_parser()
    # Weights may come after flags.
    given = parser.parse_intermixed_args(argv)
    method, document = "GET", None
    if given.clear:
        if given.weights or given.by:
            parser.error("--clear goes with no weights and no --by")
        method = "DELETE"
    elif given.weights or given.by:
        try:
            document = make_traffic(parse_weights(given.weights), given.by).document()
        except ValueError as error:
            parser.error(str(error))
        method = "POST"
    server = server_of(parser, given)
    path = f"/v2/repository/models/{quote(given.model, safe='')}/traffic"
    try:
        response = server.call(method, path, document)
        lines = [_line(response)]
        lines += [f"warning: {warning}" for warning in response.get("warnings", ())]
    except (CannotAskError, OSError) as error:
        print_error(_PROGRAM, error)
        return 2
    if given.json:
        lines = [json.dumps(response, indent=1)]
    print_lines(lines)
    return 0


def _line(response: dict[str, Any]) -> str:
    model, document = response.get("model"), response.get("traffic")
    if document is None:
        return f"{model}: all requests without a version go to the latest"
    try:
        traffic = read_traffic(document)
    except ValueError as error:
        raise CannotAskError(f"the mesh responds with traffic of another kind: {error}") from error
    return f"{model}: {traffic} ({response.get('source')})"


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model's name")
    add("weights", nargs="*", metavar="VERSION=WEIGHT", help="all versions that get requests")
    add(
        "--by", default="", metavar="SOURCE",
        help="keep callers together by header:NAME, principal, sequence, parameter:NAME or"
        " tensor:NAME (default: each request is on its own)",
    )  # fmt: skip
    add("--clear", action="store_true", help="forget what was set: the configuration counts again")
    add("--json", action="store_true", help="print one JSON document")
    add_server_arguments(parser, timeout_s=10)
    return parser
