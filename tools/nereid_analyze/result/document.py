"""The JSON document of --json: what was measured, and what the search found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.version import version
from nereid_analyze.checkpoint import trial_document
from nereid_perf.distribution import percentile_us
from nereid_perf.questions.metrics import error_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_analyze.job import Job
    from nereid_analyze.result.analysis import Analysis
    from nereid_analyze.result.config_change import ConfigChange
    from nereid_analyze.search.finals import Finalist
    from nereid_analyze.search.trial import Sample
    from nereid_perf.measurement import Measurement

# The version stays if fields are added; no field is changed or removed.
FORMAT: Final = "nereid.analyze/1"
STDOUT: Final = "-"


def partial_document(job: Job, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the part of a job that does not need the search's end."""
    return {
        "title": job.title,
        "models": dict(job.models),
        "server": job.server,
        "started": job.started,
        "command": list(job.command),
        "mode": job.mode,
        "constraints": [constraint.text for constraint in job.goal.constraints],
        "is_finished": False,
        "measurements": [
            {
                **trial_document(sample.trial),
                **_figures(sample.measurement),
                "keeps_constraints": job.goal.is_met(sample.measurement),
            }
            for sample in samples
        ],
    }


def finished_document(analysis: Analysis, changes: Sequence[ConfigChange]) -> dict[str, Any]:
    """Return a finished job with its winner; `gain` is `None` if the default keeps no rate."""
    return {
        **partial_document(analysis.job, analysis.result.samples),
        "is_finished": True,
        "default": _finalist(analysis.default),
        "winner": _finalist(analysis.winner),
        "gain": analysis.gain,
        "changes": [
            {
                "model": change.model,
                "name": change.name,
                "before": change.before,
                "after": change.after,
                "reason": change.reason,
            }
            for change in analysis.changes()
        ],
        "diffs": {change.model: change.text() for change in changes},
    }


def write_document(path: str, jobs: Sequence[dict[str, Any]]) -> None:
    """Write the document to a file, or print it for STDOUT; raise OSError."""
    document = {"format": FORMAT, "nereid_version": version(), "jobs": list(jobs)}
    text = json.dumps(document, indent=1, allow_nan=False)
    if path == STDOUT:
        print(text)  # noqa: T201
    else:
        Path(path).write_text(f"{text}\n", encoding="utf-8")


def _finalist(finalist: Finalist) -> dict[str, Any]:
    return {
        "candidate": finalist.candidate.plain(),
        "level": [finalist.level.kind, finalist.level.value],
        "rate": finalist.rate,
        "rates": list(finalist.rates),
        "is_kept": finalist.is_kept,
        **({} if finalist.best is None else _figures(finalist.best)),
    }


def _figures(measurement: Measurement) -> dict[str, Any]:
    response = measurement.latencies.response
    return {
        "requests_per_s": _finite(measurement.requests_per_s),
        **{f"p{each}_us": _finite(percentile_us(response, each)) for each in (50, 95, 99)},
        "error_share": _finite(error_share(measurement)),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
