"""Reads Model Analyzer's YAML file. Unused keys cause warnings; errors are reported together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import yaml

from nereid_analyze.goal import ALIASES, METRICS, Constraint, Goal
from nereid_analyze.model_analyzer.alternatives import expand
from nereid_analyze.model_analyzer.keys import (
    GPU_FIELDS,
    INFERENCE_FIELDS,
    MODEL_KEYS,
    MODEL_KEYS_WITHOUT_EFFECT,
    PARAMETERS,
    PERF_FLAG_NAMES,
    PERF_FLAGS,
    SERVER_FIELDS,
    USED,
    WITHOUT_EFFECT,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MODES: Final = ("adaptive", "brute", "quick", "optuna")
_LAUNCH_MODES: Final = ("local", "docker", "c_api", "remote")


class ConfigFileError(Exception):
    """Raised if a file cannot be used; the text has a line for each reason."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model in the file; empty tuples mean not given.

    alternatives: values to try for fields of the configuration; `None` chooses them automatically.
    """

    name: str
    cpu_only: bool = False
    alternatives: Mapping[str, list[Any]] | None = None
    concurrency: tuple[int, ...] = ()
    request_rates: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    goal: Goal = field(default_factory=Goal)
    weighting: int = 1
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AnalyzerFile:
    """The contents of a file, with Model Analyzer's defaults for keys that are missing."""

    models: tuple[ModelSpec, ...] = ()
    composing: tuple[ModelSpec, ...] = ()
    bls_models: tuple[str, ...] = ()
    mode: str = "brute"
    search_disabled: bool = False
    concurrently: bool = False
    concurrency: tuple[int, int] = (1, 1024)
    rates: tuple[int, int] = (16, 8192)
    searches_rates: bool = False
    instances: tuple[int, int] = (1, 5)
    batches: tuple[int, int] = (1, 128)
    binary_steps: int = 5
    sweeps_tops: bool = True
    uses_formula: bool = False
    early_exit: bool = False
    least_share: float = 0.05
    most_share: float = 0.10
    least_trials: int = 20
    most_trials: int = 200
    patience: int = 10
    reloads: bool = True
    protocol: str = "grpc"
    launch_mode: str = "local"
    repository: str = ""
    http_endpoint: str = "localhost:8000"
    grpc_endpoint: str = "localhost:8001"
    metrics_url: str = "http://localhost:8002/metrics"
    server_flags: tuple[str, ...] = ()
    export_path: str = "."
    checkpoint_directory: str = "checkpoints"
    filename_inference: str = "metrics-model-inference.csv"
    filename_gpu: str = "metrics-model-gpu.csv"
    filename_server: str = "metrics-server-only.csv"
    inference_fields: tuple[str, ...] = INFERENCE_FIELDS
    gpu_fields: tuple[str, ...] = GPU_FIELDS
    server_fields: tuple[str, ...] = SERVER_FIELDS
    tops: int = 3
    warnings: tuple[str, ...] = ()


def read_config_file(path: Path) -> AnalyzerFile:
    """Read a file; raise ConfigFileError if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigFileError(f"{path}: {error}") from error
    return parse_config_file(text)


def parse_config_file(text: str) -> AnalyzerFile:
    """Parse a file's text; raise ConfigFileError if it cannot be used."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigFileError(f"this is no YAML: {error}") from error
    if document is not None and not isinstance(document, dict):
        raise ConfigFileError("expected keys and their values")
    return _Reader({str(key): value for key, value in (document or {}).items()}).read()


class _Reader:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._errors: list[str] = []
        self._warnings: list[str] = []

    def read(self) -> AnalyzerFile:
        self._warn_of_keys(self._document, USED, WITHOUT_EFFECT, "")
        models = self._models("profile_models")
        composing = self._models("ensemble_composing_models")
        only_cpu = set(self._names("cpu_only_composing_models"))
        file = AnalyzerFile(
            models=models,
            composing=tuple(
                replace(model, cpu_only=True) if model.name in only_cpu else model
                for model in composing
            ),
            bls_models=tuple(model.name for model in self._models("bls_composing_models")),
            mode=self._choice("run_config_search_mode", "brute", MODES),
            search_disabled=self._flag("run_config_search_disable"),
            concurrently=self._flag("run_config_profile_models_concurrently_enable"),
            concurrency=self._range("concurrency", 1, 1024),
            rates=self._range("request_rate", 16, 8192),
            searches_rates=self._flag("request_rate_search_enable")
            or any(model.request_rates for model in models),
            instances=self._range("instance_count", 1, 5),
            batches=self._range("model_batch_size", 1, 128),
            binary_steps=self._number("run_config_search_max_binary_search_steps", 5),
            sweeps_tops=not self._flag("concurrency_sweep_disable"),
            uses_formula=self._flag("use_concurrency_formula"),
            early_exit=self._flag("early_exit_enable"),
            least_share=self._number("min_percentage_of_search_space", 5) / 100,
            most_share=self._number("max_percentage_of_search_space", 10) / 100,
            least_trials=self._number("optuna_min_trials", 20),
            most_trials=self._number("optuna_max_trials", 200),
            patience=self._number("optuna_early_exit_threshold", 10),
            reloads=not self._flag("reload_model_disable"),
            protocol=self._choice("client_protocol", "grpc", ("http", "grpc")),
            launch_mode=self._choice("triton_launch_mode", "local", _LAUNCH_MODES),
            repository=self._text("model_repository", ""),
            http_endpoint=self._text("triton_http_endpoint", "localhost:8000"),
            grpc_endpoint=self._text("triton_grpc_endpoint", "localhost:8001"),
            metrics_url=self._text("triton_metrics_url", "http://localhost:8002/metrics"),
            server_flags=self._server_flags(),
            export_path=self._text("export_path", "."),
            checkpoint_directory=self._text("checkpoint_directory", "checkpoints"),
            filename_inference=self._text(
                "filename_model_inference", "metrics-model-inference.csv"
            ),
            filename_gpu=self._text("filename_model_gpu", "metrics-model-gpu.csv"),
            filename_server=self._text("filename_server_only", "metrics-server-only.csv"),
            inference_fields=self._fields("inference_output_fields", INFERENCE_FIELDS),
            gpu_fields=self._fields("gpu_output_fields", GPU_FIELDS),
            server_fields=self._fields("server_output_fields", SERVER_FIELDS),
            tops=self._number("num_configs_per_model", 3),
        )
        self._check(file)
        if self._errors:
            raise ConfigFileError("\n".join(self._errors))
        return replace(file, warnings=tuple(self._warnings))

    def _check(self, found: AnalyzerFile) -> None:
        say = self._errors.append
        if found.launch_mode in ("docker", "c_api"):
            say(
                f"triton_launch_mode {found.launch_mode}: only remote (a server that runs) and"
                " local (a mesh that is started for it) can be measured"
            )
        if found.least_share > found.most_share:
            say("min_percentage_of_search_space is above max_percentage_of_search_space")
        if found.least_trials > found.most_trials:
            say("optuna_min_trials is above optuna_max_trials")
        if found.concurrently and found.mode == "brute":
            say(
                "run_config_profile_models_concurrently_enable needs run_config_search_mode"
                " quick, optuna or adaptive"
            )
        if "weighting" in self._document:
            say("weighting is of a model, below its name in profile_models")
        for model in found.models:
            if model.concurrency and model.request_rates:
                say(f"{model.name}: give concurrency or request_rate, not both")
            if model.alternatives is not None and found.mode == "quick":
                say(
                    f"{model.name}: model_config_parameters lists what to measure, quick chooses"
                    " itself: use run_config_search_mode brute, optuna or adaptive"
                )
        names = [model.name for model in found.models]
        say_twice = sorted({name for name in names if names.count(name) > 1})
        if say_twice:
            say(f"profile_models: {', '.join(say_twice)} is there twice")

    def _models(self, key: str) -> tuple[ModelSpec, ...]:
        value = self._document.get(key)
        if value is None:
            return ()
        entries: list[tuple[str, Any]] = []
        if isinstance(value, str):
            entries = [(text.strip(), None) for text in value.split(",") if text.strip()]
        elif isinstance(value, dict):
            entries = list(value.items())
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    entries += list(item.items())
                else:
                    entries.append((str(item), None))
        else:
            self._errors.append(f"{key}: expected names of models")
        return tuple(self._model(str(name), entry or {}) for name, entry in entries)

    def _model(self, name: str, given: Any) -> ModelSpec:
        if not isinstance(given, dict):
            self._errors.append(f"{name}: expected keys and their values")
            given = {}
        self._warn_of_keys(given, MODEL_KEYS, MODEL_KEYS_WITHOUT_EFFECT, f"{name}: ")
        parameters = given.get("parameters") or {}
        if not isinstance(parameters, dict):
            self._errors.append(f"{name}: parameters: expected keys and their values")
            parameters = {}
        self._warn_of_keys(parameters, PARAMETERS, frozenset(), f"{name}: parameters: ")
        merged = {**{name: self._document.get(name) for name in PARAMETERS}, **parameters}
        alternatives = None
        if given.get("model_config_parameters"):
            try:
                alternatives = expand(given["model_config_parameters"])
            except (ValueError, AttributeError) as error:
                self._errors.append(f"{name}: model_config_parameters: {error}")
        return ModelSpec(
            name=name,
            cpu_only=bool(given.get("cpu_only")),
            alternatives=alternatives,
            concurrency=self._numbers(f"{name}: concurrency", merged["concurrency"]),
            request_rates=self._numbers(f"{name}: request_rate", merged["request_rate"]),
            batch_sizes=self._numbers(f"{name}: batch_sizes", merged["batch_sizes"]),
            goal=self._goal(name, given),
            weighting=int(given.get("weighting") or 1),
            flags=tuple(
                self._perf_flags(
                    name,
                    {
                        **(self._document.get("perf_analyzer_flags") or {}),
                        **(given.get("perf_analyzer_flags") or {}),
                    },
                )
            ),
        )

    def _goal(self, name: str, given: dict[str, Any]) -> Goal:
        objectives = given.get("objectives") or self._document.get("objectives")
        if isinstance(objectives, str):
            objectives = [objectives]
        if isinstance(objectives, list):
            objectives = dict.fromkeys(objectives, 10)
        weights = {}
        for metric, weight in (objectives or {}).items():
            if (known := self._metric(f"{name}: objectives", metric)) is not None:
                weights[known] = float(weight)
        return Goal(weights or Goal().objectives, tuple(self._constraints(name, given)))

    def _constraints(self, name: str, given: dict[str, Any]) -> Iterator[Constraint]:
        bounds = dict(given.get("constraints") or self._document.get("constraints") or {})
        for key, metric, side in (
            ("latency_budget", "perf_latency_p99", "max"),
            ("min_throughput", "perf_throughput", "min"),
        ):
            if key not in self._document:
                continue
            if metric in bounds and bounds[metric].get(side) != self._document[key]:
                self._errors.append(f"{key} and constraints both limit {metric}: give one of them")
            bounds[metric] = {side: self._document[key]}
        for metric, bound in bounds.items():
            known = self._metric(f"{name}: constraints", metric)
            if not isinstance(bound, dict) or not bound or set(bound) - {"min", "max"}:
                self._errors.append(f"{name}: constraints: {metric}: expected min or max")
            elif known is not None:
                least, most = bound.get("min"), bound.get("max")
                if least is not None and most is not None and least > most:
                    self._errors.append(f"{name}: constraints: {metric}: min is above max")
                yield Constraint(known, least, most)

    def _metric(self, where: str, name: str) -> str | None:
        known = ALIASES.get(name, name)
        if known in METRICS:
            return known
        self._errors.append(f"{where}: '{name}' is no metric{_suggestion(name, METRICS)}")
        return None

    def _perf_flags(self, name: str, given: Any) -> list[str]:
        arguments = []
        for key, value in (given if isinstance(given, dict) else {}).items():
            if key not in PERF_FLAGS:
                self._warnings.append(
                    f"{name}: perf_analyzer_flags: {key} has no effect here: the search decides"
                )
                continue
            for item in value if isinstance(value, list) else [value]:
                text = str(item).lower() if isinstance(item, bool) else str(item)
                arguments.append(f"--{PERF_FLAG_NAMES.get(key, key)}={text}")
        return arguments

    def _warn_of_keys(
        self,
        given: dict[str, Any],
        used: frozenset[str],
        without_effect: frozenset[str],
        where: str,
    ) -> None:
        for key in given:
            if key in without_effect:
                self._warnings.append(f"{where}{key} has no effect here")
            elif key not in used:
                near = _suggestion(str(key), used | without_effect)
                self._warnings.append(f"{where}unknown key '{key}'{near}")

    def _flag(self, key: str) -> bool:
        value = self._document.get(key, False)
        if not isinstance(value, bool):
            self._errors.append(f"{key}: expected true or false")
        return bool(value)

    def _text(self, key: str, default: str) -> str:
        value = self._document.get(key, default)
        return default if value is None else str(value)

    def _choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self._text(key, default)
        if value not in allowed:
            self._errors.append(f"{key}: '{value}': expected one of {', '.join(allowed)}")
        return value

    def _number(self, key: str, default: int) -> int:
        numbers = self._numbers(key, self._document.get(key, default))
        if len(numbers) != 1:
            self._errors.append(f"{key}: expected a whole number")
            return default
        return numbers[0]

    def _range(self, what: str, least: int, most: int) -> tuple[int, int]:
        low = self._number(f"run_config_search_min_{what}", least)
        high = self._number(f"run_config_search_max_{what}", most)
        if low > high:
            self._errors.append(
                f"run_config_search_min_{what} {low} is above run_config_search_max_{what} {high}"
            )
        return low, high

    def _numbers(self, where: str, value: Any) -> tuple[int, ...]:
        """Parse a number, a list, a text with commas, or start, stop and step."""
        if value is None:
            return ()
        try:
            if isinstance(value, dict):
                start, stop = int(value["start"]), int(value["stop"])
                numbers = list(range(start, stop + 1, int(value.get("step", 1))))
            elif isinstance(value, str):
                numbers = [int(text) for text in value.split(",")]
            else:
                numbers = [int(item) for item in (value if isinstance(value, list) else [value])]
        except (KeyError, TypeError, ValueError):
            numbers = []
        if not numbers or min(numbers) < 0:
            self._errors.append(f"{where}: expected numbers, or start, stop and step")
            return ()
        return tuple(numbers)

    def _names(self, key: str) -> list[str]:
        value = self._document.get(key) or []
        return value.split(",") if isinstance(value, str) else [str(item) for item in value]

    def _fields(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.strip() for name in self._names(key)) or default

    def _server_flags(self) -> tuple[str, ...]:
        given = self._document.get("triton_server_flags") or {}
        if not isinstance(given, dict):
            self._errors.append("triton_server_flags: expected flags and their values")
            return ()
        return tuple(f"--{str(key).replace('_', '-')}={value}" for key, value in given.items())


def _suggestion(name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
