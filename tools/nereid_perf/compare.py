"""The command `nereid perf compare A B`: compares two servers, or two earlier results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.config.settings_reader import exit_on_errors, read_shared_settings
from nereid.core.terminal import print_error
from nereid_perf import exit_codes
from nereid_perf.exit_codes import ExitCode, exit_code
from nereid_perf.output.result_file import ResultFileError, read_result
from nereid_perf.output.settings import OutputSettings
from nereid_perf.questions.asked import ask_results
from nereid_perf.questions.settings import QuestionSettings
from nereid_perf.run import measure, now_text, result_of, write
from nereid_perf.run_settings import make_run_parser, read_run_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nereid_perf.output.result import MeasuredServer
    from nereid_perf.run_settings import RunSettings

_PROGRAM: Final = "nereid perf compare A B"


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    parser = make_run_parser(_PROGRAM)
    parser.add_argument("side", nargs=2, help="a server, or a file of --json")
    return parser


def main(argv: Sequence[str]) -> int:
    """Compare, and return the exit code."""
    named = [*argv[:2]] if not any(text.startswith("-") for text in argv[:2]) else []
    flags = argv[len(named) :]
    is_help = not {"-h", "--help", "--help-all"}.isdisjoint(flags)
    if len(named) < 2 and not is_help:
        wanted = "expected two servers, or two files of --json, before all flags"
        exit_on_errors([wanted], _PROGRAM)
    if named and all(Path(text).is_file() for text in named):
        return _compare_results(named, flags)
    settings = read_run_settings(flags, _PROGRAM)
    sides = [replace(settings, target=replace(settings.target, url=text)) for text in named]
    exit_on_errors(_errors(settings, sides), _PROGRAM)
    return measure(sides, ["compare", *argv])


def _errors(settings: RunSettings, sides: Sequence[RunSettings]) -> list[str]:
    errors = settings.questions.comparison_errors()
    for side in sides:
        errors += side.target.errors()
    if settings.target.url:
        errors.append("-u: A and B are the servers")
    if settings.measurement.records:
        errors.append("--records: a comparison keeps none")
    if settings.measurement.request_count:
        errors.append("a comparison measures by --measurement-interval: no --request-count")
    return errors


def _compare_results(paths: Sequence[str], flags: Sequence[str]) -> int:
    classes = (QuestionSettings, OutputSettings)
    questions, output = read_shared_settings(classes, flags, {}, _PROGRAM, ending=exit_codes.TEXT)
    exit_on_errors(questions.comparison_errors(), _PROGRAM)
    try:
        a, b = (_measured_server(Path(path)) for path in paths)
        findings = ask_results(questions, a.measurements, b.measurements)
    except ValueError as error:
        print_error(_PROGRAM, error)
        return ExitCode.FAILED
    command = ["compare", *paths, *flags]
    failure = write(result_of(questions, findings, (a, b), command, started=now_text()), output)
    if failure:
        print_error(_PROGRAM, failure)
        return ExitCode.FAILED
    return exit_code(findings)


def _measured_server(path: Path) -> MeasuredServer:
    servers = read_result(path).servers
    if len(servers) != 1:
        raise ResultFileError(f"{path}: expected the result of one server")
    return servers[0]
