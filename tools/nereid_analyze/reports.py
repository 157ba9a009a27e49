"""Writes the reports of a finished search: tables, the page, and lines for the terminal."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING

from google.protobuf import json_format, text_format

from nereid.core.terminal import print_lines
from nereid.pb import model_config_pb2
from nereid_analyze.result.config_change import ConfigChange, config_changes
from nereid_analyze.result.config_text import ConfigTextError
from nereid_analyze.result.document import STDOUT
from nereid_analyze.result.page import page_text
from nereid_analyze.result.tables import gpu_table, inference_table, server_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from nereid_analyze.job import Job
    from nereid_analyze.result.analysis import Analysis
    from nereid_analyze.search.trial import Sample


def changes_of(analysis: Analysis) -> list[ConfigChange]:
    """Return each model's change of config.pbtxt, or else of the served configuration."""
    texts = dict(analysis.job.texts)
    for model, config in analysis.job.configs.items():
        if model not in texts:
            texts[model] = _text_of(config)
    return config_changes(analysis, texts)


def text_output(json: str) -> AbstractContextManager[object]:
    """Return a context in which text goes to stderr if stdout gets the JSON document alone."""
    return redirect_stdout(sys.stderr) if json == STDOUT else nullcontext()


def write_tables(job: Job, samples: Sequence[Sample], directory: Path) -> list[Path]:
    """Write the tables of what was measured, and return their paths; raise OSError."""
    results = directory / "results"
    results.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, text in (
        ("inference", inference_table(job, samples)),
        ("gpu", gpu_table(job, samples)),
        ("server", server_table(job, samples)),
    ):
        path = results / job.filenames[kind]
        written.append(path)
        path.write_text(text, encoding="utf-8")
    return written


def write_reports(analysis: Analysis, changes: list[ConfigChange], directory: Path) -> list[Path]:
    """Write the files, and return their paths; raise OSError if that fails."""
    written = write_tables(analysis.job, analysis.result.samples, directory)
    reports = directory / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    page = reports / f"{analysis.job.title}.html"
    page.write_text(page_text(analysis, changes), encoding="utf-8")
    written.append(page)
    return written


def print_analysis(analysis: Analysis, changes: list[ConfigChange]) -> None:
    """Print the analysis on the terminal."""
    print_lines(["", *analysis.lines(), ""])
    for change in changes:
        print_lines([*change.text().split("\n"), ""])
    for setting in analysis.changes():
        if not setting.model:
            print_lines([f"Of the mesh, {setting.text}"])


def _text_of(config: Mapping[str, Any]) -> str:
    try:
        message = json_format.ParseDict(
            dict(config), model_config_pb2.ModelConfig(), ignore_unknown_fields=True
        )
    except json_format.ParseError as error:
        raise ConfigTextError(f"the server's configuration cannot be read: {error}") from error
    return text_format.MessageToString(message)
