"""The change of each model's config.pbtxt for the winner, with a reason for each line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid_analyze.result.config_text import changed_text
from nereid_analyze.space.candidate import DELAY, EXECUTORS, INSTANCES, MAX_BATCH, PREFERRED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nereid_analyze.result.analysis import Analysis, Change

CONFIG: Final = "config.pbtxt"
_WORDS: Final = {
    MAX_BATCH: ("max_batch_size",),
    INSTANCES: ("instance_group", "count", "kind"),
    DELAY: ("max_queue_delay_microseconds", "dynamic_batching"),
    PREFERRED: ("preferred_batch_size",),
}


class ApplyError(Exception):
    """Raised if nothing could be written; the text says why."""


@dataclass(frozen=True)
class ConfigChange:
    """The change of one model; `before` is `None` if the model has no config.pbtxt."""

    model: str
    before: str | None
    after: str
    changes: tuple[Change, ...]

    def lines(self) -> list[tuple[str, str]]:
        """Return each line of the difference, with its reason."""
        name = f"{self.model}/{CONFIG}"
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), name, name, lineterm="", n=1
        )
        return [(line, self._reason(line)) for line in lines]

    def text(self) -> str:
        """Return the difference as text for a terminal."""
        lines = []
        for line, reason in self.lines():
            lines.append(f"{line:44}  # {reason}" if reason else line)
        return "\n".join(lines)

    def _reason(self, line: str) -> str:
        if not line.startswith(("+", "-")) or line.startswith(("+++", "---")):
            return ""
        for change in self.changes:
            words = _WORDS.get(change.name, (change.name.rpartition(".")[2],))
            if any(word in line for word in words) and not self._is_nearer(line, change):
                return change.reason
        text = line[1:].strip()
        return "" if not text or text in "{}[]" else "goes with it"

    def _is_nearer(self, line: str, change: Change) -> bool:
        """Return whether the line contains the longer field name of another change."""
        longest = max(
            (len(word) for word in _WORDS.get(change.name, ()) if word in line), default=0
        )
        return any(
            len(word) > longest and word in line
            for other in self.changes
            if other is not change
            for word in _WORDS.get(other.name, ())
        )


def config_changes(analysis: Analysis, texts: Mapping[str, str | None]) -> list[ConfigChange]:
    """Return the changes of `texts`, each model's config.pbtxt. May raise ConfigTextError."""
    by_model: dict[str, list[Change]] = {}
    for change in analysis.changes():
        if change.name != EXECUTORS:
            by_model.setdefault(change.model, []).append(change)
    per_model = []
    for model, changes in by_model.items():
        before = texts.get(model)
        after = changed_text(
            before or "",
            model,
            {change.name: change.after for change in changes},
            analysis.job.configs[model],
            cpu_only=model in analysis.job.cpu_only,
        )
        per_model.append(ConfigChange(model, before, after, tuple(changes)))
    return per_model


def read_texts(repository: Path, models: Mapping[str, object]) -> dict[str, str | None]:
    """Return each model's config.pbtxt; raise ApplyError if the repository lacks a model."""
    texts: dict[str, str | None] = {}
    for model in models:
        directory = repository / model
        if not directory.is_dir():
            raise ApplyError(f"{repository} has no model '{model}'")
        path = directory / CONFIG
        texts[model] = path.read_text(encoding="utf-8") if path.exists() else None
    return texts


def apply_changes(repository: Path, changes: list[ConfigChange]) -> list[Path]:
    """Write all files or none, and return the backups; raise ApplyError if a file has changed."""
    for change in changes:
        path = repository / change.model / CONFIG
        present = path.read_text(encoding="utf-8") if path.exists() else None
        if present != change.before:
            raise ApplyError(
                f"{path} has changed since the analysis began: look at the difference, and apply it"
                " by hand or analyze again"
            )
    backups = []
    for change in changes:
        path = repository / change.model / CONFIG
        if change.before is not None:
            backups.append(_backup(path, change.before))
        part = path.with_name(f".{CONFIG}.part")
        part.write_text(change.after, encoding="utf-8")
        if path.exists():
            part.chmod(path.stat().st_mode & 0o7777)
        part.replace(path)
    return backups


def _backup(path: Path, text: str) -> Path:
    number = 1
    while (backup := path.with_name(f"{CONFIG}.before-analyze-{number}")).exists():
        number += 1
    backup.write_text(text, encoding="utf-8")
    return backup
