"""The command `nereid analyze profile`, which searches, reports, and applies the result."""

from __future__ import annotations

import signal
import time
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.cli.time_limit import PIECES, call_within
from nereid.config.settings_reader import read_shared_settings, settings_argv, settings_parser
from nereid.core.terminal import log_to_terminal, print_error, print_lines
from nereid_analyze.checkpoint import Checkpoint, CheckpointError, recorded
from nereid_analyze.job import Job, measurements_again, most_candidates, search_of
from nereid_analyze.model_analyzer.config_file import AnalyzerFile, ConfigFileError
from nereid_analyze.planning import Group, groups_of, job_of
from nereid_analyze.progress import Progress
from nereid_analyze.reports import (
    changes_of,
    print_analysis,
    text_output,
    write_reports,
    write_tables,
)
from nereid_analyze.result.analysis import Analysis
from nereid_analyze.result.config_change import ApplyError, apply_changes, read_texts
from nereid_analyze.result.config_text import ConfigTextError
from nereid_analyze.result.document import finished_document, partial_document, write_document
from nereid_analyze.result.refusals import refusals
from nereid_analyze.search.trial import CandidateError, Sample, resolve
from nereid_analyze.settings import COMMON, AnalyzeSettings, merged_file
from nereid_analyze.space.candidate import MAX_BATCH
from nereid_analyze.space.override import overridden
from nereid_analyze.target.local_mesh import LocalMesh
from nereid_analyze.target.measured_models import MeasuredModels, MeasuredTarget
from nereid_analyze.target.served_models import TargetError
from nereid_perf.distribution import percentile_us
from nereid_perf.endpoint import Endpoint
from nereid_perf.questions.metrics import rate_text, time_text
from nereid_perf.run_settings import without_secrets
from nereid_perf.server import Server, ServerError
from nereid_perf.server_stats.gauges import GaugeSampler
from nereid_perf.settings import TargetSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from nereid_analyze.result.config_change import ConfigChange
    from nereid_analyze.search.adaptive import AdaptiveResult
    from nereid_analyze.search.modes import ModeResult
    from nereid_analyze.search.trial import Measure, Trial
    from nereid_perf.measurement import Measurement

_PROGRAM: Final = "nereid analyze"
_INTERRUPTED: Final = 130
_UNMET: Final = 3
_FAILED: Final = 1
_USAGE: Final = 2
_LOOK_S: Final = 5.0
_OWN: Final = ("--url=", "--protocol=", "--collect-metrics=", "--metrics-url=")


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    return settings_parser((AnalyzeSettings, TargetSettings), _PROGRAM)


def main(argv: Sequence[str]) -> int:
    """Run the search, and return the exit code."""
    log_to_terminal("%(levelname)s: %(message)s")
    settings, server = read_shared_settings(
        (AnalyzeSettings, TargetSettings), argv, {}, _PROGRAM, common=COMMON, ending=""
    )
    if server.path:
        print_error(_PROGRAM, "--endpoint: settings are searched by inference requests alone")
        return _USAGE
    try:
        file = merged_file(settings)
    except ConfigFileError as error:
        print_error(_PROGRAM, error)
        return _USAGE
    for warning in file.warnings:
        print_error(_PROGRAM, warning)
    # Treat SIGTERM like Ctrl-C, so that models are restored.
    signal.signal(signal.SIGTERM, _interrupt)
    run = _Run(settings, server, file, ("nereid", "analyze", *without_secrets(argv)), [])
    with text_output(settings.json):
        code = _run(run)
    if settings.json:
        try:
            write_document(settings.json, run.documents)
        except OSError as error:
            print_error(_PROGRAM, error)
            return _FAILED
    return code


def _run(run: _Run) -> int:
    code = 0
    try:
        for group in groups_of(run.file):
            code = max(code, run.analyze(group))
    except KeyboardInterrupt:
        print_error(_PROGRAM, "interrupted; --resume goes on from here")
        return _INTERRUPTED
    except (
        OSError, TargetError, ServerError, CheckpointError, CandidateError, ConfigTextError,
        ApplyError,
    ) as error:  # fmt: skip
        print_error(_PROGRAM, error)
        return _FAILED
    return code


@dataclass(frozen=True)
class _Run:
    settings: AnalyzeSettings
    server: TargetSettings
    file: AnalyzerFile
    command: tuple[str, ...]
    # Documents of the jobs that have measurements.
    documents: list[dict[str, Any]]

    def analyze(self, group: Group) -> int:
        """Run one job, and return the exit code."""
        target = self._target(group)
        with MeasuredModels(target) as measured:
            job = self._job(group, measured, target.metrics_url)
            if not job.space.settings:
                print_lines([f"{job.title} has no settings that could be varied"])
            print_lines(self._beginning(job))
            measured.use_default(job.space.default)
            samples: list[Sample] = []
            try:
                result = self._search(group, job, measured, samples)
            except BaseException:
                self._report_part(job, samples)
                raise
        analysis = Analysis(job, result)
        changes = changes_of(analysis)
        print_analysis(analysis, changes)
        written = write_reports(analysis, changes, Path(self.file.export_path))
        print_lines(f"Wrote {path}" for path in written)
        self.documents.append(finished_document(analysis, changes))
        if not analysis.winner.is_kept:
            return _UNMET
        if self.settings.apply:
            return self._apply(job, changes, target)
        return 0

    def _search(
        self, group: Group, job: Job, measured: MeasuredModels, samples: list[Sample]
    ) -> AdaptiveResult | ModeResult:
        path = self._checkpoint(group)
        with Checkpoint(path, job, resume=self.settings.resume) as checkpoint:
            measure = checkpoint.measure(measured.measure)
            if self.settings.verbose:
                measure = partial(_measure_verbosely, measure)
            progress = Progress(
                job.goal,
                most_candidates(job),
                measurements_again(job),
                lambda line: print_lines([line]),
                time.monotonic,
            )

            def measure_and_keep(trial: Trial) -> Measurement:
                measurement = progress.measure(measure, trial)
                samples.append(Sample(trial, measurement))
                return measurement

            try:
                return resolve(search_of(job), measure_and_keep)
            finally:
                progress.end()

    def _report_part(self, job: Job, samples: list[Sample]) -> None:
        """Report what was measured before the search ended early."""
        if not samples:
            return
        self.documents.append(partial_document(job, samples))
        written = write_tables(job, samples, Path(self.file.export_path))
        candidates = {sample.trial.candidate for sample in samples}
        counts = f"{len(samples)} measurements of {len(candidates)} candidates"
        print_lines([f"Ended early, after {counts}: none is recommended"])
        print_lines(f"Wrote {path}" for path in written)

    def _target(self, group: Group) -> MeasuredTarget:
        file, server = self.file, self.server
        protocol = server.protocol if not self.settings.config_file else file.protocol
        if any(argument.startswith(("-i", "--protocol")) for argument in self.command):
            protocol = server.protocol
        address = server.url or (file.http_endpoint if protocol == "http" else file.grpc_endpoint)
        given = server.server
        endpoint = Endpoint(
            "http" if protocol == "http" else "grpc",
            address.removeprefix("http://").removeprefix("https://").rstrip("/"),
            given.tls,
            given.headers,
        )
        is_local = file.launch_mode == "local"
        common = [argument for argument in settings_argv(server) if not argument.startswith(_OWN)]
        return MeasuredTarget(
            endpoint=endpoint,
            models=group.models,
            composing=tuple(spec.name for spec in file.composing) + file.bls_models,
            cpu_only=frozenset(
                spec.name for spec in (*file.composing, *group.specs) if spec.cpu_only
            ),
            reloads=file.reloads,
            flags={
                spec.name: (*common, *spec.flags, *self.settings.perf_flag) for spec in group.specs
            },
            metrics_url="" if is_local else self._metrics_url(),
            bls_models=file.bls_models,
            start_mesh=self._start_mesh() if is_local else None,
            seed=self.settings.seed,
        )

    def _start_mesh(self) -> Any:
        export = Path(self.file.export_path)
        export.mkdir(parents=True, exist_ok=True)
        flags = (*self.file.server_flags, *self.settings.serve_flag)
        repository, log = Path(self.file.repository), export / "nereid-serve.log"

        def start(executors: int | None) -> LocalMesh:
            given = self.settings.executors
            return LocalMesh(repository, log, flags, executors or (given[0] if given else None))

        return start

    def _metrics_url(self) -> str:
        url = self.server.metrics_url if not self.settings.config_file else self.file.metrics_url
        url = url if "://" in url else f"http://{url}"
        try:
            if not url.startswith(("http://", "https://")):
                raise OSError(f"'{url}': expected host:port/path")

            def look() -> None:
                urllib.request.urlopen(url, timeout=_LOOK_S).close()  # noqa: S310

            call_within(PIECES * _LOOK_S, look)
            return url
        except OSError as error:
            print_lines([f"No metrics of the server: {url}: {error}"])
            return ""

    def _job(self, group: Group, measured: MeasuredModels, metrics_url: str) -> Job:
        texts: dict[str, str | None] = {}
        if self.file.repository and (self.settings.apply or Path(self.file.repository).is_dir()):
            texts = read_texts(Path(self.file.repository), measured.configs)
        idle: dict[str, tuple[float, float]] = {}
        if metrics_url:
            with GaugeSampler(metrics_url, _LOOK_S) as sampler:
                pass
            idle = sampler.summary()
        return job_of(
            group,
            self.file,
            self.settings,
            measured.configs,
            self._sent_rows(group, measured),
            server=f"{measured.server.endpoint.address}, {measured.server.endpoint.protocol}",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=self.command,
            texts=texts,
            idle=idle,
        )

    def _sent_rows(self, group: Group, measured: MeasuredModels) -> Mapping[str, int]:
        path = self._checkpoint(group)
        if self.settings.resume and path.exists():
            # The server's statistics have the first search's requests by now.
            return recorded(path)[0].sent_rows
        return measured.sent_rows(group.specs[0].batch_sizes or (1,))

    def _checkpoint(self, group: Group) -> Path:
        settings, file = self.settings, self.file
        directory = Path(settings.checkpoint_directory or file.checkpoint_directory)
        if not directory.is_absolute() and not settings.checkpoint_directory:
            directory = Path(file.export_path) / directory
        return directory / f"{group.title}.jsonl"

    def _beginning(self, job: Job) -> list[str]:
        limits = (
            ", ".join(constraint.text for constraint in job.goal.constraints) or "no constraints"
        )
        varied = "; ".join(
            f"{setting.label} {', '.join(map(str, setting.values))}"
            for setting in job.space.settings
        )
        return [
            f"{job.title}: {job.mode} over {job.space.size} candidates, {limits}",
            f"Settings: {varied}",
            *(
                f"max_batch_size of {model} stays at {rows} or more: batches were as large"
                for model, rows in job.sent_rows.items()
                if rows > 1
            ),
        ]

    def _apply(self, job: Job, changes: list[ConfigChange], target: MeasuredTarget) -> int:
        repository = Path(self.file.repository)
        refused = [
            f"{change.model} would refuse {requests}"
            for change in changes
            for requests in refusals(
                job.configs[change.model],
                overridden(
                    job.configs[change.model], {each.name: each.after for each in change.changes}
                ),
                job.sent_rows.get(change.model, 0),
            )
        ]
        print_lines(refused)
        if refused and not self.settings.yes:
            print_lines(["Nothing was written: --apply --yes writes it all the same"])
            return _FAILED
        backups = apply_changes(repository, changes)
        print_lines(f"Kept {backup}" for backup in backups)
        for change in changes:
            print_lines([f"Wrote {repository / change.model / 'config.pbtxt'}"])
        if target.start_mesh is not None:
            return 0
        server = Server(target.endpoint, timeout_s=600.0)
        for change in changes:
            server.load_model(change.model)
            config = server.config(change.model) or {}
            wanted = [setting for setting in change.changes if setting.name == MAX_BATCH]
            if any(int(config.get(MAX_BATCH) or 0) != setting.after for setting in wanted):
                raise ApplyError(
                    f"{change.model} was loaded, but not from {repository}: the server has another"
                    " repository"
                )
            print_lines([f"Loaded {change.model}"])
        return 0


def _measure_verbosely(measure: Measure, trial: Trial) -> Measurement:
    measurement = measure(trial)
    level = trial.level
    p99 = time_text(percentile_us(measurement.latencies.response, 99))
    what = f"  {trial.candidate.text}  {level.kind} {level.value:g}, {trial.seconds:g} s"
    print_lines([f"{what}: {rate_text(measurement.requests_per_s)}, p99 {p99}"])
    return measurement


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
