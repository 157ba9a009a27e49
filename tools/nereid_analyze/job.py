"""The job of a search: all that determines the search, except for the measurements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nereid_analyze.goal import Constraint, Goal
from nereid_analyze.model_analyzer.keys import GPU_FIELDS, INFERENCE_FIELDS, SERVER_FIELDS
from nereid_analyze.search.adaptive import (
    AdaptiveResult,
    AdaptiveRules,
    most_evaluations,
    search_adaptively,
)
from nereid_analyze.search.inner import InnerRules
from nereid_analyze.search.modes import ModeResult, ModeRules, search_by_mode
from nereid_analyze.search.sweep import SweepRules
from nereid_analyze.space.candidate import Setting, candidate_of
from nereid_analyze.space.defaults import ModelDefaults
from nereid_analyze.space.space import Space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid_analyze.search.trial import Search

SCHEMA: Final = "nereid-analyze/1"
ADAPTIVE: Final = "adaptive"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of one search; `models` has the weights of the models that get requests."""

    title: str
    models: Mapping[str, int]
    configs: Mapping[str, Mapping[str, Any]]
    cpu_only: tuple[str, ...] = ()
    mode: str = ADAPTIVE
    space: Space = field(default_factory=lambda: Space(()))
    defaults: Mapping[str, ModelDefaults] = field(default_factory=dict)
    goal: Goal = field(default_factory=Goal)
    inner: InnerRules = field(default_factory=InnerRules)
    sweep: SweepRules = field(default_factory=SweepRules)
    rules: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    server: str = ""
    started: str = ""
    command: tuple[str, ...] = ()
    price_per_hour: float | None = None
    # Original text of each config.pbtxt; `None` if the model has no file.
    texts: Mapping[str, str | None] = field(default_factory=dict)
    # The largest request that is known of each model's clients.
    sent_rows: Mapping[str, int] = field(default_factory=dict)
    # Gauges of the metrics page before there was any load.
    idle: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "inference": INFERENCE_FIELDS,
            "gpu": GPU_FIELDS,
            "server": SERVER_FIELDS,
        }
    )
    filenames: Mapping[str, str] = field(
        default_factory=lambda: {
            "inference": "metrics-model-inference.csv",
            "gpu": "metrics-model-gpu.csv",
            "server": "metrics-server-only.csv",
        }
    )


def search_of(job: Job) -> Search[AdaptiveResult | ModeResult]:
    """Return the job's search as a new generator."""
    rules = dict(job.rules)
    if job.mode == ADAPTIVE:
        return search_adaptively(
            job.space,
            job.goal,
            job.defaults,
            AdaptiveRules(inner=job.inner, seed=job.seed, **rules),
        )
    return search_by_mode(
        job.mode,
        job.space,
        job.goal,
        job.defaults,
        ModeRules(sweep=job.sweep, seed=job.seed, **rules),
    )


def most_candidates(job: Job) -> int:
    """Return how many candidates the job's search measures at most, or about."""
    if job.mode == ADAPTIVE:
        # The first shows batch times, the last is the best one simplified.
        return 2 + most_evaluations(job.space, int(job.rules["most_candidates"]))
    return min(job.space.size, int(job.rules.get("most_trials", job.space.size)))


def measurements_again(job: Job) -> int:
    """Return about how many measurements the best candidates get again."""
    tops = int(job.rules.get("tops") or job.rules.get("finalists") or 0)
    return int(job.rules["rounds"]) * min(1 + tops, job.space.size)


def job_document(job: Job) -> dict[str, Any]:
    """Return the job as a document for JSON."""
    return {
        **{key: value for key, value in vars(job).items() if key not in _PARTS},
        "schema": SCHEMA,
        "models": dict(job.models),
        "space": [
            [setting.model, setting.name, list(setting.values), setting.default]
            for setting in job.space.settings
        ],
        "defaults": {name: _plain(default) for name, default in job.defaults.items()},
        "goal": {
            "objectives": dict(job.goal.objectives),
            "constraints": [_plain(constraint) for constraint in job.goal.constraints],
        },
        "inner": _plain(job.inner),
        "sweep": _plain(job.sweep),
        "rules": dict(job.rules),
    }


def parse_job(document: Mapping[str, Any]) -> Job:
    """Parse a job's document; raise ValueError if it has another schema or is not a job."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {document.get('schema')}, expected {SCHEMA}")
    try:
        given = {key: value for key, value in document.items() if key not in (*_PARTS, "schema")}
        return Job(
            **{
                **given,
                "cpu_only": tuple(given["cpu_only"]),
                "command": tuple(given["command"]),
                "idle": {key: tuple(value) for key, value in given["idle"].items()},
                "fields": {key: tuple(value) for key, value in given["fields"].items()},
            },
            space=Space(
                tuple(
                    Setting(model, name, tuple(map(_value, values)), _value(default))
                    for model, name, values, default in document["space"]
                )
            ),
            defaults={
                name: ModelDefaults(**fields) for name, fields in document["defaults"].items()
            },
            goal=Goal(
                document["goal"]["objectives"],
                tuple(Constraint(**fields) for fields in document["goal"]["constraints"]),
            ),
            inner=InnerRules(**document["inner"]),
            sweep=SweepRules(
                **{
                    **document["sweep"],
                    "listed": tuple(document["sweep"]["listed"]),
                    "batch_sizes": tuple(document["sweep"]["batch_sizes"]),
                }
            ),
            rules=document["rules"],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this is no job: {error}") from error


_PARTS: Final = ("space", "defaults", "goal", "inner", "sweep", "rules")


def _plain(value: Any) -> dict[str, Any]:
    names = value.__dataclass_fields__
    return {name: getattr(value, name) for name in names}


def _value(value: Any) -> Any:
    ((_, _, found),) = candidate_of([["", "", value]]).choices
    return found
