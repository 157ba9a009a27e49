"""Commands of `nereid analyze`. The module must not import packages that an extra installs."""

from __future__ import annotations

from typing import Final

from nereid_perf.subcommands import Subcommands

SUMMARY: Final = "find a model's best settings by measuring"
_COMMANDS: Final = {
    "profile": ("nereid_analyze.profile", "search settings by measuring (without a command: this)"),
    "report": ("nereid_analyze.report", "make the reports of a checkpoint again"),
}

_ANALYZE: Final = Subcommands("nereid analyze", _COMMANDS, "analyze")
main, make_parser = _ANALYZE.main, _ANALYZE.make_parser
