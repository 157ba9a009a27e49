"""Recognises files that a model's own loads write, such as a cache that the model's code makes.

A file is the loads' own if it changes during two loads in a row, but not between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.revision import FileState


class _Load(NamedTuple):
    changed: frozenset[str]
    had_new: bool
    after: frozenset[FileState]


class LoadWrites:
    """Keeps, for each model, the files that the model's last load has changed."""

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}

    def add_load(self, found: FoundModel, after: FoundModel) -> bool:
        """Compare a model before and after a load; return whether only loads have changed it."""
        changed = frozenset(path for path, _ in found.files ^ after.files)
        last = self._loads.pop(found.name, None)
        if not changed:
            return False
        before = frozenset(path for path, _ in found.files)
        new = changed - before
        self._loads[found.name] = _Load(changed, bool(new), after.files)
        if last is None or (found.draft, found.versions) != (after.draft, after.versions):
            return False
        watched = changed | last.changed
        if any(path in watched for path, _ in last.after ^ found.files):
            # These files changed between the loads, so something else writes them as well.
            return False
        # A load may write a file under another name each time.
        return all(path in last.changed or (last.had_new and path in new) for path in changed)

    def forget(self, name: str) -> None:
        """Forget a model that is not served any more."""
        self._loads.pop(name, None)
