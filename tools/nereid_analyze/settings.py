"""Flags of `nereid analyze profile`, which may override a Model Analyzer file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nereid.config.flags import boolean, choice, flag, integer
from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.model_analyzer.config_file import (
    MODES,
    AnalyzerFile,
    ConfigFileError,
    ModelSpec,
    read_config_file,
)
from nereid_analyze.result.document import STDOUT
from nereid_analyze.space.model_settings import NAMES, USUAL
from nereid_perf.questions.metrics import Unit, parse_quantity

ADAPTIVE: Final = MODES[0]
# --help-all shows all flags.
COMMON: Final = (
    *("profile_models", "url", "protocol", "config_file", "launch_mode", "model_repository"),
    *("search", "target", "vary", "max_concurrency", "window", "export_path", "resume", "apply"),
    *("json", "verbose", "header", "ssl_grpc_use_ssl"),
)
_LIMIT: Final = re.compile(r"(p50|p90|p95|p99|avg)=(.+)")


def _number(least: float, most: float) -> Any:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ValueError(f"expected a number, {least:g} to {most:g}")
        return value

    return parse


def _limits(text: str) -> tuple[Constraint, ...]:
    """Parse p99=20ms,avg=5ms."""
    constraints = []
    for part in filter(None, text.split(",")):
        matched = _LIMIT.fullmatch(part.strip())
        if matched is None:
            raise ValueError("expected p50, p90, p95, p99 or avg, and its limit: p99=20ms")
        most_us = parse_quantity(matched[2], Unit.MICROSECONDS)
        constraints.append(Constraint(f"perf_latency_{matched[1]}", most=most_us / 1000))
    return tuple(constraints)


def _vary(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ValueError(f"expected some of {', '.join(NAMES)}")
    return names


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",") if part}))
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise ValueError("expected whole numbers from 1 on, by commas")
    return numbers


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, kw_only=True)
class AnalyzeSettings:
    """Search for the settings with which models serve most requests, by measuring."""

    config_file: str = flag("", "a configuration of Model Analyzer's", aliases=("-f",))
    profile_models: tuple[str, ...] = flag(
        (), "models, by commas: each for itself, or with --concurrently all at once", _names,
        aliases=("-m", "--model", "--model-names"),
    )  # fmt: skip
    launch_mode: str = flag(
        "", "remote: a server that runs (what is meant without a file); local: a mesh that is"
        " started for it", choice("remote", "local"), aliases=("--triton-launch-mode",),
    )  # fmt: skip
    model_repository: str = flag(
        "", "where the models are on this machine; local and --apply need it"
    )
    serve_flag: tuple[str, ...] = flag(
        (), "of nereid serve, with local: --serve-flag=--rate-limit=off", repeated=True
    )
    perf_flag: tuple[str, ...] = flag(
        (), "of nereid perf, for each model: --perf-flag=--shape=INPUT:3,4", repeated=True
    )
    search: str = flag(
        "", "adaptive, or Model Analyzer's brute, quick or optuna; without a file adaptive",
        choice(*MODES), aliases=("--run-config-search-mode",),
    )  # fmt: skip
    target: tuple[Constraint, ...] = flag(
        (), "what latencies may be, such as p99=20ms: the highest rate within it is searched",
        _limits,
    )  # fmt: skip
    vary: tuple[str, ...] = flag(USUAL, f"which settings, by commas, of {', '.join(NAMES)}", _vary)
    max_instances: int = flag(0, "of a model; 0: the file's, or 5", integer(0, 1024))
    max_batch_size: int = flag(0, "of a model; 0: the file's, or 128", integer(0, 1 << 16))
    max_threads: int = flag(0, "of an operator; 0: as many as there are CPUs", integer(0, 1024))
    executors: tuple[int, ...] = flag(
        (), "numbers of executors to search, by commas, with local", _numbers
    )
    concurrently: bool = flag(
        False, "all models get requests at once, and share the machine", boolean, bare="true"
    )
    max_concurrency: int = flag(
        0, "requests in flight; 0: the file's, or 1024", integer(0, 1 << 16)
    )
    window: float = flag(1.0, "seconds of a measurement", _number(0.05, 600))
    precision: float = flag(
        0.05, "to which a highest rate is searched, relative", _number(0.001, 0.5)
    )
    max_candidates: int = flag(40, "that adaptive evaluates at most", integer(2, 10_000))
    rounds: int = flag(3, "in which the best are measured again", integer(1, 1000))
    seed: int = flag(0, "of all that is random", integer(0, 1 << 62), aliases=("--random-seed",))
    price_per_hour: float | None = flag(
        None, "of the machine, in any currency: says what a million inferences cost",
        _number(0, 1e9),
    )  # fmt: skip
    export_path: str = flag("", "directory of results and reports; else the file's, or .",
                            aliases=("-e",))  # fmt: skip
    checkpoint_directory: str = flag(
        "", "else the file's, or checkpoints below the export path", aliases=("-s",)
    )
    json: str = flag(
        "", "print one JSON document, and all else to stderr, or write it to this file",
        bare=STDOUT,
    )  # fmt: skip
    resume: bool = flag(False, "go on with the checkpoint", boolean, bare="true")
    apply: bool = flag(
        False, "write the best into --model-repository, and load it", boolean, bare="true"
    )
    yes: bool = flag(
        False, "--apply also writes what makes the server refuse requests that it accepts now",
        boolean, aliases=("-y",), bare="true",
    )  # fmt: skip
    verbose: bool = flag(
        False, "a line for each measurement", boolean, aliases=("-v",), bare="true"
    )

    def errors(self) -> list[str]:
        """Return the errors in these settings, one line each."""
        errors = []
        if not self.config_file and not self.profile_models:
            errors.append("--profile-models or --config-file says what is to be analyzed")
        if self.json and not Path(self.json).parent.is_dir():
            errors.append(f"--json: there is no directory '{Path(self.json).parent}'")
        if self.apply and not self.model_repository and not self.config_file:
            errors.append("--apply needs --model-repository, where it writes")
        if self.executors and self.launch_mode == "remote":
            errors.append("--executors are those of a mesh that is started: --launch-mode=local")
        if self.launch_mode == "local" and not self.model_repository and not self.config_file:
            errors.append("--launch-mode=local needs --model-repository")
        return errors


def merged_file(settings: AnalyzeSettings) -> AnalyzerFile:
    """Return the file's contents, with overrides by flags. May raise ConfigFileError."""
    if settings.config_file:
        given = read_config_file(Path(settings.config_file))
    else:
        given = AnalyzerFile(mode=ADAPTIVE, launch_mode="remote", protocol="http")
    said = {
        "mode": settings.search,
        "launch_mode": settings.launch_mode,
        "repository": settings.model_repository,
        "concurrently": settings.concurrently,
        "export_path": settings.export_path,
    }
    changes: dict[str, Any] = {name: value for name, value in said.items() if value}
    for name, most in (
        ("instances", settings.max_instances),
        ("batches", settings.max_batch_size),
        ("concurrency", settings.max_concurrency),
    ):
        if most:
            changes[name] = _limited(getattr(given, name), most)
    if settings.profile_models:
        named = {model.name: model for model in given.models}
        changes["models"] = tuple(
            named.get(name, ModelSpec(name=name)) for name in settings.profile_models
        )
    merged = replace(given, **changes)
    if settings.target:
        merged = replace(merged, models=tuple(_aimed(model, settings) for model in merged.models))
    _check(merged)
    return merged


def _limited(given: tuple[int, int], most: int) -> tuple[int, int]:
    return min(given[0], most), most


def _aimed(spec: ModelSpec, settings: AnalyzeSettings) -> ModelSpec:
    """Return the spec, in which the command line's limits replace those of the same metrics."""
    own = {constraint.metric for constraint in settings.target}
    others = tuple(
        constraint for constraint in spec.goal.constraints if constraint.metric not in own
    )
    return replace(spec, goal=Goal(spec.goal.objectives, (*others, *settings.target)))


def _check(merged: AnalyzerFile) -> None:
    errors = []
    if not merged.models:
        errors.append("there is no model to analyze: profile_models, or --profile-models")
    if merged.launch_mode == "local" and not merged.repository:
        errors.append("local needs model_repository, or --model-repository")
    for model in merged.models:
        if merged.mode == ADAPTIVE and not model.goal.is_throughput:
            names = ", ".join(model.goal.objectives)
            errors.append(
                f"{model.name}: adaptive searches the highest rate, not {names}: use quick or brute"
            )
        if merged.mode == ADAPTIVE and (model.concurrency or model.request_rates):
            errors.append(
                f"{model.name}: adaptive chooses the load itself: listed concurrency or"
                " request_rate need brute"
            )
    if merged.concurrently and len(merged.models) < 2:
        errors.append("one model alone is not measured concurrently: name several")
    if errors:
        raise ConfigFileError("\n".join(errors))
