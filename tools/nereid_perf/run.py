"""The command `nereid perf run`: measures a server, or two in turns, as the flags ask."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.terminal import print_error, print_lines
from nereid.version import version
from nereid_perf.exit_codes import ExitCode, exit_code
from nereid_perf.inputs.errors import InputError
from nereid_perf.measured_side import open_side
from nereid_perf.output.live import LiveView
from nereid_perf.output.machine import this_machine
from nereid_perf.output.picture import PictureError
from nereid_perf.output.report import write_outputs
from nereid_perf.output.result import FoundRate, Result
from nereid_perf.output.result_file import result_text
from nereid_perf.output.summary import summary_lines
from nereid_perf.questions.asked import Findings, ask, ask_comparison
from nereid_perf.run_settings import make_run_parser, read_run_settings, without_secrets
from nereid_perf.server import ServerError
from nereid_perf.session import SessionError, failure_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nereid_perf.measured_side import MeasuredSide
    from nereid_perf.measurement import LoadLevel, Measurement
    from nereid_perf.output.result import MeasuredServer
    from nereid_perf.output.settings import OutputSettings
    from nereid_perf.questions.comparison import Turn
    from nereid_perf.questions.settings import QuestionSettings
    from nereid_perf.run_settings import RunSettings

_PROGRAM: Final = "nereid perf"
_SIDES: Final = ("A", "B")


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    return make_run_parser(_PROGRAM)


def main(argv: Sequence[str]) -> int:
    """Measure, and return the exit code."""
    return measure([read_run_settings(argv, _PROGRAM)], ["run", *argv])


def measure(settings: Sequence[RunSettings], command: Sequence[str]) -> int:
    """Measure one server, or two that are compared, and return the exit code.

    The settings of two servers differ only in their targets. An error keeps the results so far.
    """
    # Treat SIGTERM like Ctrl-C: keep the results and free the shared memory.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = _Run(settings)
    started = now_text()
    findings, failure = None, ""
    try:
        findings = run.findings()
    except InputError as error:
        print_error(_PROGRAM, error)
        return ExitCode.USAGE
    except BrokenPipeError:
        failure = "its output was closed"
    except (OSError, ServerError, SessionError) as error:
        failure = str(error)
    except KeyboardInterrupt:
        failure = "interrupted"
    if findings is None:
        findings = Findings(tuple(map(tuple, run.measured_so_far())))
    if any(findings.sides):
        failure = failure or _all_failed(findings)
        result = result_of(
            settings[0].questions,
            findings,
            run.servers(findings),
            command,
            started=started,
            notes=(f"Ended early: {failure}",) if failure else (),
        )
        failure = write(result, settings[0].output) or failure
    if failure:
        print_error(_PROGRAM, failure)
        return ExitCode.FAILED
    return exit_code(findings)


def result_of(  # noqa: PLR0913 (by keyword)
    questions: QuestionSettings,
    findings: Findings,
    servers: Sequence[MeasuredServer],
    command: Sequence[str],
    *,
    started: str,
    notes: tuple[str, ...] = (),
) -> Result:
    """Return the result with everything that was measured and found."""
    return Result(
        command=("nereid", "perf", *without_secrets(command)),
        started=started,
        nereid_version=version(),
        machine=this_machine(),
        servers=tuple(servers),
        percentile=float(questions.percentile or 99),
        slo=questions.slo,
        max_rate=None if findings.max_rate is None else FoundRate.of(findings.max_rate),
        comparisons=findings.comparisons,
        violations=findings.violations,
        notes=notes,
    )


def write(result: Result, settings: OutputSettings) -> str:
    """Write the files, and print the summary; return an error's text, or ""."""
    written, failure = [], ""
    # The files come first: whoever reads the summary may read only its first lines.
    try:
        written = write_outputs(result, settings)
    except (OSError, PictureError) as error:
        failure = str(error)
    if settings.prints_json:
        print_lines([result_text(result)])
    else:
        print_lines([*summary_lines(result), *(f"Written: {path}" for path in written)])
    return failure


def now_text() -> str:
    """Return the time now, with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class _Run:
    def __init__(self, settings: Sequence[RunSettings]) -> None:
        self.measured: list[list[Measurement]] = [[] for _ in settings]
        self._settings = settings
        self._names = _SIDES if len(settings) > 1 else ("",)
        self._sides: list[MeasuredSide] = []
        self._view = LiveView(settings[0].output.view)

    def findings(self) -> Findings:
        """Measure and return findings. May raise InputError, ServerError, SessionError, OSError."""
        with ExitStack() as exits:
            # The view enters first and exits last: its table is gone before anything is printed.
            exits.enter_context(self._view)
            for settings, name in zip(self._settings, self._names, strict=True):
                on_progress = partial(self._view.on_progress, side=name)
                self._sides.append(exits.enter_context(open_side(settings, on_progress)))
            settings = self._settings[0]
            if len(self._sides) > 1:
                return ask_comparison(settings.questions, self._measure_turn, settings.levels)
            self._view.on_plan(*settings.duration)
            return ask(settings.questions, self._measure, settings.levels)

    def measured_so_far(self) -> list[list[Measurement]]:
        """Return each side's measurements, with what was measured of an interrupted level."""
        for side, measured in zip(self._sides, self.measured, strict=False):
            if side.session.interrupted is not None:
                measured.append(side.session.interrupted)
        return self.measured

    def servers(self, findings: Findings) -> list[MeasuredServer]:
        """Return the servers with their measurements."""
        pairs = zip(self._sides, findings.sides, strict=True)
        return [side.result(measurements) for side, measurements in pairs]

    def _measure(self, level: LoadLevel) -> Measurement:
        side = self._sides[0]
        often = self._settings[0].questions.find_max_rate
        return self._keep(
            0, side.measure_for_a_time(level) if often else side.session.measure(level)
        )

    def _measure_turn(self, turn: Turn) -> Measurement:
        return self._keep(turn.side, self._sides[turn.side].measure_for_a_time(turn.level))

    def _keep(self, side: int, measurement: Measurement) -> Measurement:
        self.measured[side].append(measurement)
        self._view.on_measurement(measurement, self._names[side])
        return measurement


def _all_failed(findings: Findings) -> str:
    """Return an error text if all requests failed at all levels, or ""."""
    for side in findings.sides:
        failures = [measurement.failures for measurement in side if measurement.failures]
        if failures and not any(measurement.requests for measurement in side):
            return failure_text(failures[-1])
    return ""
