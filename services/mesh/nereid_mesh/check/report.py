"""The report of `nereid check`: as text for people, or as one JSON document for programs."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any, Final

from nereid.core.terminal import escape_controls
from nereid.facts.batching import batching_of
from nereid.facts.findings import Severity
from nereid.model_config import config_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.facts.findings import Finding
    from nereid_mesh.check.findings import CheckedModel, CheckedVersion

# New releases may add fields to the document, but never change or remove fields.
FORMAT: Final = "nereid.check/1"
_WIDTH: Final = 100
_INDENT: Final = "    "


def json_report(
    models: Sequence[CheckedModel], repositories: Sequence[Finding], *, problems: bool
) -> str:
    """Return the report as JSON. problems: whether the exit code is 1."""
    document = {
        "format": FORMAT,
        "problems": problems,
        "repositories": [*map(_finding, repositories)],
        "models": [*map(_model, models)],
    }
    return json.dumps(document, indent=1)


def _model(model: CheckedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": model.path,
        "namespace": model.namespace,
        "versions": [*map(_version, model.versions)],
        "findings": [*map(_finding, model.findings)],
        "sources": dict(model.sources),
    }


def _version(version: CheckedVersion) -> dict[str, Any]:
    config = version.config
    return {
        "version": version.number,
        "state": version.state,
        "reason": version.reason,
        "batching": None if config is None else batching_of(config),
        "instances": [
            {
                "group": group.name,
                "device": group.device,
                "count": group.count,
                "passive": group.passive,
            }
            for group in version.instances
        ],
        # The response of GET /v2/models/{model}/config.
        "config": None if config is None else json.loads(config_json(config)),
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "message": finding.message,
        "hint": finding.hint,
    }


def text_report(models: Sequence[CheckedModel], repositories: Sequence[Finding]) -> str:
    """Return the report as text, with a paragraph per model and a last line with counts."""
    lines = [line for finding in repositories for line in _finding_lines(finding, "")]
    for model in models:
        lines.append(escape_controls(model.name))
        lines += [f"  version {version.number}: {_summary(version)}" for version in model.versions]
        lines += [f"  {escape_controls(path)}: {source}" for path, source in model.sources.items()]
        for finding in model.findings:
            lines += _finding_lines(finding, "  ")
    findings = [*repositories, *(finding for model in models for finding in model.findings)]
    counts = [
        _count(sum(finding.severity is severity for finding in findings), severity.value)
        for severity in Severity
    ]
    lines.append(f"{_count(len(models), 'model')}: {', '.join(counts)}")
    return "\n".join(lines)


def _summary(version: CheckedVersion) -> str:
    if version.config is None:
        return version.state
    config = version.config
    parts = [version.state, config.backend or config.platform]
    parts.append(f"max_batch_size {config.max_batch_size}")
    parts.append(f"batching {batching_of(config)}")
    for group in version.instances:
        passive = " passive" if group.passive else ""
        parts.append(f"{_count(group.count, f'{passive} instance'.strip())} on {group.device}")
    return ", ".join(parts)


def _finding_lines(finding: Finding, indent: str) -> Iterator[str]:
    start = f"{indent}{finding.severity.value}: "
    # Users search for error texts, so do not wrap them.
    yield f"{start}{finding.message.rstrip()} [{finding.code}]"
    if finding.hint:
        yield from textwrap.wrap(
            finding.hint,
            _WIDTH,
            initial_indent=f"{indent}{_INDENT}",
            subsequent_indent=f"{indent}{_INDENT}",
            break_on_hyphens=False,
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
