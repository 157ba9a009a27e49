"""The checkpoint of a run: a JSON Lines file with the job and every measured trial.

To resume, the search starts from the beginning and first gets the measurements in the file. The
same measurements make it ask for the same trials.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Self

from nereid.core.files.json_document import parse_document, read_document_lines
from nereid_analyze.job import job_document, parse_job
from nereid_analyze.search.trial import CandidateError
from nereid_perf.output.result_file import ResultFileError, measurement_document, parse_measurement

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import TextIOWrapper
    from pathlib import Path

    from nereid_analyze.job import Job
    from nereid_analyze.search.trial import Measure, Trial
    from nereid_perf.measurement import Measurement

_log = logging.getLogger(__name__)


class CheckpointError(Exception):
    """Raised if a file cannot be used; the text says why."""


class Checkpoint:
    """A context that records measurements; measure() first returns those in the file."""

    def __init__(self, path: Path, job: Job, *, resume: bool) -> None:
        self._path = path
        self._job = job
        self._resume = resume
        self._records: list[dict[str, Any]] = []
        self._file: TextIOWrapper
        self._part = path.with_name(f"{path.name}.part")
        self._is_settled = False
        self.replayed = 0
        self.measured = 0

    def __enter__(self) -> Self:
        """Open the file; raise CheckpointError if it is unusable or belongs to another search."""
        if self._resume and self._path.exists():
            job, self._records = _read(self._path)
            different = _differences(job_document(job), job_document(self._job))
            if different:
                raise CheckpointError(
                    f"{self._path} is of another search, which differs in {', '.join(different)}:"
                    " go on with the same flags, or begin without --resume"
                )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Write a new file beside the old one, which stays until all of its useful records
            # were read.
            self._file = self._part.open("w", encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error
        self._write(job_document(self._job))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._settle()
        self._file.close()

    def measure(self, measure: Measure) -> Measure:
        """Return a function that measures only the trials that the file does not have."""
        return replayed(self._records, self._measured_by(measure), self._keep)

    def _measured_by(self, measure: Measure) -> Measure:
        def measured(trial: Trial) -> Measurement:
            self._settle()
            try:
                measurement = measure(trial)
            except CandidateError as error:
                self._write({**trial_document(trial), "failure": str(error)})
                raise
            finally:
                self.measured += 1
            self._write({**trial_document(trial), "measurement": measurement_document(measurement)})
            return measurement

        return measured

    def _keep(self, record: dict[str, Any]) -> None:
        self.replayed += 1
        self._write(record)

    def _settle(self) -> None:
        if not self._is_settled:
            self._part.replace(self._path)
            self._is_settled = True

    def _write(self, document: Any) -> None:
        self._file.write(json.dumps(document, allow_nan=False) + "\n")
        self._file.flush()


def replayed(
    records: list[dict[str, Any]],
    otherwise: Measure,
    on_replay: Callable[[dict[str, Any]], None] = lambda _record: None,
) -> Measure:
    """Return a function that answers from records while they match the trials, then measures."""
    waiting = list(reversed(records))

    def measure(trial: Trial) -> Measurement:
        if waiting:
            record = waiting.pop()
            document = trial_document(trial)
            if all(record.get(key) == value for key, value in document.items()):
                on_replay(record)
                if "failure" in record:
                    raise CandidateError(record["failure"])
                return parse_measurement(record["measurement"])
            _log.warning("checkpoint has another next trial than this search; its rest is ignored")
            waiting.clear()
        return otherwise(trial)

    return measure


def recorded(path: Path) -> tuple[Job, Measure]:
    """Return a checkpoint's job and a measure() for it; both raise CheckpointError."""
    job, records = _read(path)

    def missing(_trial: Trial) -> Measurement:
        raise CheckpointError(f"{path} ends before the search did: go on with profile --resume")

    return job, replayed(records, missing)


def trial_document(trial: Trial) -> dict[str, Any]:
    """Return a trial as a document that is equal to itself after a trip through JSON."""
    document = {
        "candidate": trial.candidate.plain(),
        "level": [trial.level.kind, trial.level.value],
        "seconds": trial.seconds,
        "batch_size": trial.batch_size,
    }
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


def _read(path: Path) -> tuple[Job, list[dict[str, Any]]]:
    try:
        lines = [*read_document_lines(path)]
        job = parse_job(parse_document(lines[0]))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (IndexError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}") from error
    records = []
    for number, line in enumerate(lines[1:], 2):
        try:
            record = parse_document(line)
            if not isinstance(record, dict):
                raise TypeError("expected an object")
            if "failure" not in record:
                parse_measurement(record["measurement"])
        except (ValueError, KeyError, TypeError, ResultFileError) as error:
            if number == len(lines):
                # Ignore an incomplete last line, which was being written when the run ended.
                break
            raise CheckpointError(f"{path}:{number}: this is no trial: {error}") from error
        records.append(record)
    return job, records


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    # Fields about when and how the run was started do not change the search.
    other = {
        "started", "command", "price_per_hour", "fields", "filenames", "server", "idle",
        "sent_rows",
    }  # fmt: skip
    b = json.loads(json.dumps(b))
    return [key for key in b if key not in other and json.loads(json.dumps(a.get(key))) != b[key]]
