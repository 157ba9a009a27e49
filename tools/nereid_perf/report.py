"""The command `nereid perf report RESULT...`, which reports earlier results."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.config.settings_reader import exit_on_errors, read_shared_settings, settings_parser
from nereid.core.terminal import print_error, print_lines
from nereid_perf.exit_codes import ExitCode
from nereid_perf.output.picture import PictureError
from nereid_perf.output.report import report
from nereid_perf.output.result_file import ResultFileError, read_result
from nereid_perf.output.settings import OutputSettings
from nereid_perf.output.summary import summary_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PROGRAM: Final = "nereid perf report RESULT..."


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    parser = settings_parser((OutputSettings,), _PROGRAM)
    parser.add_argument("result", nargs="+", help="a file of --json")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the reports, and return the exit code."""
    names = list(takewhile(lambda text: not text.startswith("-"), argv))
    flags = argv[len(names) :]
    (settings,) = read_shared_settings((OutputSettings,), flags, {}, _PROGRAM, ending="")
    if not names:
        exit_on_errors(["expected files of --json, before all flags"], _PROGRAM)
    paths = [Path(name) for name in names]
    try:
        written = report(paths, settings)
        for path in written:
            print_lines([f"Written: {path}"])
        if not written:
            for path in paths:
                print_lines([f"{path}:", *summary_lines(read_result(path))])
    except (OSError, PictureError, ResultFileError) as error:
        print_error(_PROGRAM, error)
        return ExitCode.FAILED
    return ExitCode.OK
