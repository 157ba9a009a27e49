"""The command `nereid api-key NAME`, which makes an API key and its entry for --auth-config."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.cli.command_parser import CommandParser
from nereid_gateway.guards.auth.api_key import digest_of, make_key
from nereid_gateway.guards.auth.config import AuthConfigError, parse_config

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMMARY: Final = "make an API key for --auth-config"


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(
        "nereid api-key",
        "Print a random API key (on standard error) and its entry for --auth-config"
        " (on standard output): nereid api-key web >>auth.toml",
    )
    parser.add_argument("name", help="the client's name, in logs and limits")
    parser.add_argument(
        "--rights", default="health,metadata,inference", help="the groups of APIs, by commas"
    )
    parser.add_argument(
        "--of-stdin", action="store_true", help="read the key from standard input instead"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the key to standard error, and the entry without the key to standard output."""
    parser = make_parser()
    given = parser.parse_args(argv)
    if given.of_stdin:
        key = sys.stdin.readline().strip()
        if not key:
            parser.error("there is no key on standard input")
    else:
        key = make_key()
    rights = [right.strip() for right in given.rights.split(",")]
    entry = {"name": given.name, "sha256": digest_of(key), "rights": rights}
    try:
        parse_config({"keys": [entry]}, Path())
    except AuthConfigError as error:
        parser.error(str(error))
    if not given.of_stdin:
        sys.stderr.write(f"{key}\n")
    # In JSON form, these values are also valid TOML.
    print("[[keys]]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items()), sep="\n")
    return 0
