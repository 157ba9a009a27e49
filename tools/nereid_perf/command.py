"""Commands of `nereid perf`. This module must not import packages that only the extra installs."""

from __future__ import annotations

from typing import Final

from nereid_perf.exit_codes import TEXT
from nereid_perf.subcommands import Subcommands

SUMMARY: Final = "measure any KServe v2 server"
_COMMANDS: Final = {
    "run": ("nereid_perf.run", "measure a server (what is meant without a command)"),
    "compare": ("nereid_perf.compare", "two servers in turns, or two results: A B [FLAGS]"),
    "report": ("nereid_perf.report", "a page, tables or a summary of results: RESULT... [FLAGS]"),
    "mock": ("nereid_perf.mock.command", "a server with a set delay, to calibrate with"),
}

_PERF: Final = Subcommands("nereid perf", _COMMANDS, "perf", TEXT)
main, make_parser = _PERF.main, _PERF.make_parser
