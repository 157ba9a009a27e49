"""The command `nereid analyze report`: makes the reports of checkpoints again, without a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.config.flags import flag
from nereid.config.settings_reader import read_settings, settings_parser
from nereid.core.terminal import log_to_terminal, print_error, print_lines
from nereid_analyze.checkpoint import CheckpointError, recorded
from nereid_analyze.job import search_of
from nereid_analyze.reports import changes_of, print_analysis, text_output, write_reports
from nereid_analyze.result.analysis import Analysis
from nereid_analyze.result.config_text import ConfigTextError
from nereid_analyze.result.document import STDOUT, finished_document, write_document
from nereid_analyze.search.trial import CandidateError, resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PROGRAM: Final = "nereid analyze report"


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Make the reports of checkpoints again."""

    checkpoint: tuple[str, ...] = flag(..., "a file of nereid analyze profile", repeated=True)
    export_path: str = flag(".", "directory of results and reports", aliases=("-e",))
    json: str = flag(
        "", "print one JSON document, and all else to stderr, or write it to this file",
        bare=STDOUT,
    )  # fmt: skip
    price_per_hour: float | None = flag(None, "of the machine; else the checkpoint's", float)


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    return settings_parser((ReportSettings,), _PROGRAM)


def main(argv: Sequence[str]) -> int:
    """Make the reports, and return the exit code."""
    log_to_terminal("%(message)s")
    settings = read_settings(ReportSettings, argv, {}, _PROGRAM)
    jobs = []
    try:
        with text_output(settings.json):
            for name in settings.checkpoint:
                job, measure = recorded(Path(name))
                if settings.price_per_hour is not None:
                    job = replace(job, price_per_hour=settings.price_per_hour)
                analysis = Analysis(job, resolve(search_of(job), measure))
                changes = changes_of(analysis)
                print_analysis(analysis, changes)
                written = write_reports(analysis, changes, Path(settings.export_path))
                print_lines(f"Wrote {path}" for path in written)
                jobs.append(finished_document(analysis, changes))
        if settings.json:
            write_document(settings.json, jobs)
    except (OSError, CheckpointError, CandidateError, ConfigTextError) as error:
        print_error(_PROGRAM, error)
        return 1
    return 0
