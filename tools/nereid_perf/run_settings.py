"""All flags of `nereid perf run` and `compare`, and the checks between groups of flags."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nereid.config.settings_reader import exit_on_errors, read_shared_settings, settings_parser
from nereid.core.terminal import print_error, print_lines
from nereid.version import version
from nereid_perf import exit_codes
from nereid_perf.inputs.flags import InputFlags
from nereid_perf.measurement import LoadLevel
from nereid_perf.output.settings import OutputSettings
from nereid_perf.perf_analyzer_flags import PerfAnalyzerFlags
from nereid_perf.questions.levels import LevelRange
from nereid_perf.questions.settings import QuestionSettings
from nereid_perf.settings import LoadSettings, MeasurementSettings, TargetSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_CLASSES: Final = (
    TargetSettings,
    InputFlags,
    LoadSettings,
    MeasurementSettings,
    QuestionSettings,
    OutputSettings,
    PerfAnalyzerFlags,
)
_HEADER_FLAGS: Final = ("-H", "--header")
_COMMON: Final = (
    *("url", "protocol", "streaming", "header", "ssl_grpc_use_ssl", "collect_metrics"),
    *("model", "batch_size", "input_data", "shape", "mix", "replay", "sequence_length"),
    *("shared_memory", "random_seed", "request_distribution", "workers"),
    *("measurement_interval", "stability_percentage", "max_trials", "request_count", "percentile"),
    *("concurrency_range", "request_rate_range", "latency_threshold", "find_max_rate", "slo"),
    *("fail_if", "rounds", "csv", "json", "html", "live"),
)


@dataclass(frozen=True)
class RunSettings:
    """All groups of flags."""

    target: TargetSettings
    inputs: InputFlags
    load: LoadSettings
    measurement: MeasurementSettings
    questions: QuestionSettings
    output: OutputSettings
    perf_analyzer: PerfAnalyzerFlags

    def errors(self) -> list[str]:
        """Return the conflicts between groups of flags, one line each."""
        errors = []
        questions, lone = self.questions, self._lone_level
        if lone is not None and (questions.concurrency_range or questions.request_rate_range):
            errors.append("--replay, --request-intervals and periodic loads: give no range")
        if lone is not None and questions.find_max_rate:
            errors.append("--find-max-rate chooses its rates: give no load")
        if self.inputs.replay and self.load.level is not None:
            errors.append("--replay has its own times: give no other load")
        if questions.find_max_rate and self.measurement.request_count:
            errors.append("--find-max-rate measures by --measurement-interval: no --request-count")
        if self.target.path:
            given = {
                "--shared-memory": self.inputs.shared_memory != "none",
                "--replay": self.inputs.replay,
                "--input-data zero": "zero" in self.inputs.input_data,
                "--trace-level": self.perf_analyzer.trace_settings,
            }
            errors += [f"{name}: not with --endpoint" for name, value in given.items() if value]
        return errors

    @property
    def levels(self) -> LevelRange | None:
        """Levels of a single load, such as a trace; `None` uses the questions' settings."""
        lone = self._lone_level
        if lone is None:
            return None
        return LevelRange(lone.kind, lone.value, lone.value, 1, listed=(lone.value,))

    @property
    def duration(self) -> tuple[int, float, float]:
        """Number of levels, and the least and most seconds for all; zeros if they are not known."""
        questions, windows = self.questions, self.measurement.windows
        levels = questions.levels
        searches = questions.find_max_rate or questions.binary_search or levels.end is None
        counts = windows.mode == "count" or windows.total_requests
        if searches or counts or self._lone_level is not None:
            return 0, 0.0, 0.0
        count = sum(1 for _ in levels.levels()) * max(1, questions.rounds)
        shortest_s, longest_s = windows.seconds
        return count, count * shortest_s, count * longest_s

    @property
    def _lone_level(self) -> LoadLevel | None:
        if self.inputs.replay:
            return LoadLevel("trace", self.load.replay_speed)
        return self.load.level


def make_run_parser(program: str) -> argparse.ArgumentParser:
    """Return all flags, for shell completion."""
    return settings_parser(_CLASSES, program)


def read_run_settings(argv: Sequence[str], program: str) -> RunSettings:
    """Return the settings; on errors, print them all and exit with 2."""
    if "--version" in argv:
        print_lines([f"nereid {version()}"])
        sys.exit(0)
    # perf_analyzer's short form of --help.
    argv = ["-h" if text == "-?" else text for text in argv]
    settings = RunSettings(
        # Environment variables that are meant for a server would set flags of this tool.
        *read_shared_settings(_CLASSES, argv, {}, program, common=_COMMON, ending=exit_codes.TEXT)
    )
    exit_on_errors(settings.errors(), program)
    ignored = settings.perf_analyzer.without_effect()
    if ignored:
        print_error(program, f"taken from perf_analyzer, to no effect: {', '.join(ignored)}")
    if settings.perf_analyzer.zero_input is not None:
        settings = replace(settings, inputs=replace(settings.inputs, input_data=("zero",)))
    return settings


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return argv as results contain it: without values of headers, which often are tokens."""
    shown: list[str] = []
    for text in argv:
        name, equals, _ = text.partition("=")
        if shown and shown[-1] in _HEADER_FLAGS:
            shown.append("...")
        elif equals and name in _HEADER_FLAGS:
            shown.append(f"{name}=...")
        elif text.startswith("-H") and len(text) > 2:
            shown.append("-H...")
        else:
            shown.append(text)
    return shown
