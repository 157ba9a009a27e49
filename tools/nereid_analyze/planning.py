"""Plans the jobs of a run from a file, flags, and the configurations of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nereid_analyze.job import ADAPTIVE, Job
from nereid_analyze.search.inner import InnerRules
from nereid_analyze.search.modes import BRUTE, OPTUNA
from nereid_analyze.search.sweep import SweepRules
from nereid_analyze.space.candidate import EXECUTORS, Setting
from nereid_analyze.space.model_settings import (
    MODEL_ANALYZER,
    Limits,
    defaults_of,
    is_ensemble,
    listed_settings,
    model_settings,
)
from nereid_analyze.space.space import Space
from nereid_perf.questions.levels import CONCURRENCY, RATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nereid_analyze.model_analyzer.config_file import AnalyzerFile, ModelSpec
    from nereid_analyze.settings import AnalyzeSettings


@dataclass(frozen=True)
class Group:
    """Models that are measured together; the goal of the first model counts."""

    specs: tuple[ModelSpec, ...]

    @property
    def title(self) -> str:
        """The title of the group's reports."""
        return "_".join(spec.name for spec in self.specs)

    @property
    def models(self) -> dict[str, int]:
        """The models with their weights."""
        return {spec.name: spec.weighting for spec in self.specs}


def groups_of(file: AnalyzerFile) -> list[Group]:
    """Return one group for each model, or one group for all models."""
    if file.concurrently:
        return [Group(file.models)]
    return [Group((model,)) for model in file.models]


def job_of(
    group: Group,
    file: AnalyzerFile,
    settings: AnalyzeSettings,
    configs: Mapping[str, Mapping[str, Any]],
    sent_rows: Mapping[str, int],
    **facts: Any,
) -> Job:
    """Return the job of a group; `configs` includes the models that the group's models call.

    sent_rows: the largest request that is known of each model's clients.
    """
    first = group.specs[0]
    seconds = settings.window
    specs = {spec.name: spec for spec in (*file.composing, *group.specs)}
    cpu_only = tuple(name for name in configs if name in specs and specs[name].cpu_only)
    tuned = {name: config for name, config in configs.items() if not is_ensemble(config)}
    goal = first.goal
    return Job(
        title=group.title,
        models=group.models,
        configs=configs,
        cpu_only=cpu_only,
        mode=file.mode,
        space=Space(tuple(_settings(group, file, settings, configs, sent_rows))),
        sent_rows=sent_rows,
        defaults={
            name: defaults_of(config, group.models.get(name, 1) if len(group.specs) > 1 else 1)
            for name, config in tuned.items()
        },
        goal=goal,
        inner=InnerRules(
            seconds=seconds,
            precision=settings.precision,
            least_concurrency=file.concurrency[0],
            most_concurrency=file.concurrency[1],
        ),
        sweep=_sweep(first, file, seconds),
        rules=_rules(file, settings),
        seed=settings.seed,
        price_per_hour=settings.price_per_hour,
        fields={
            "inference": file.inference_fields,
            "gpu": file.gpu_fields,
            "server": file.server_fields,
        },
        filenames={
            "inference": file.filename_inference,
            "gpu": file.filename_gpu,
            "server": file.filename_server,
        },
        **facts,
    )


def _settings(
    group: Group,
    file: AnalyzerFile,
    settings: AnalyzeSettings,
    configs: Mapping[str, Mapping[str, Any]],
    sent_rows: Mapping[str, int],
) -> Iterator[Setting]:
    automatic: frozenset[str] = frozenset()
    # If the user lists settings, vary only these.
    if file.reloads and not file.search_disabled:
        automatic = frozenset(settings.vary if file.mode == ADAPTIVE else MODEL_ANALYZER)
        if settings.config_file and file.mode == ADAPTIVE:
            automatic |= {"delay"}
    targets = [spec.goal.target_us for spec in group.specs if spec.goal.target_us is not None]
    limits = Limits(
        instances=file.instances,
        batches=file.batches,
        threads=settings.max_threads or os.cpu_count() or 1,
        target_us=min(targets, default=None),
        vary=automatic,
        always_batched=bool(automatic) and bool(settings.config_file),
    )
    specs = {spec.name: spec for spec in (*file.composing, *group.specs)}
    for name, config in configs.items():
        spec = specs.get(name)
        rows = max(_least_batch(name, configs), sent_rows.get(name, 0))
        if spec is not None and spec.alternatives is not None and file.reloads:
            yield from listed_settings(name, config, spec.alternatives, rows)
        else:
            yield from model_settings(name, config, replace(limits, rows=rows))
    if len(settings.executors) > 1:
        yield Setting("", EXECUTORS, settings.executors, settings.executors[0])


def _least_batch(model: str, configs: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the smallest max_batch_size with which a model's ensembles can be loaded."""
    return max(
        (
            int(config.get("max_batch_size") or 0)
            for config in configs.values()
            for step in (config.get("ensemble_scheduling") or {}).get("step", ())
            if step["model_name"] == model
        ),
        default=0,
    )


def _sweep(spec: ModelSpec, file: AnalyzerFile, seconds: float) -> SweepRules:
    searches_rates = bool(spec.request_rates) or (file.searches_rates and not spec.concurrency)
    least, most = file.rates if searches_rates else file.concurrency
    listed = spec.request_rates or spec.concurrency
    if file.search_disabled and not listed:
        listed = (1,)
    return SweepRules(
        seconds=seconds,
        kind=RATE if searches_rates else CONCURRENCY,
        least=least,
        most=most,
        listed=listed,
        batch_sizes=spec.batch_sizes or (1,),
        binary_steps=file.binary_steps,
        early_exit=file.early_exit,
    )


def _rules(file: AnalyzerFile, settings: AnalyzeSettings) -> dict[str, Any]:
    if file.mode == ADAPTIVE:
        return {
            "most_candidates": settings.max_candidates,
            "rounds": settings.rounds,
            "finalists": file.tops,
        }
    rules: dict[str, Any] = {"tops": file.tops, "rounds": settings.rounds}
    if file.mode != BRUTE:
        rules["sweeps_tops"] = file.sweeps_tops
    if file.mode == OPTUNA:
        rules |= {
            "least_share": file.least_share,
            "most_share": file.most_share,
            "least_trials": file.least_trials,
            "most_trials": file.most_trials,
            "patience": file.patience,
            "uses_formula": file.uses_formula,
        }
    return rules
