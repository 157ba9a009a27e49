"""Files that loads of a model write beside it, such as a cache that its code makes.

A file that changes while a model is loaded may be the load's or a user's, and looking once does not
tell which. So the model counts as changed, and is loaded again; what is left alone in between and
changes again during that load is the loads' own, and belongs to what was loaded. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.core.models.revision import FileState


class _Load(NamedTuple):
    # The paths that changed while it ran, and whether some of them were new.
    changed: frozenset[str]
    had_new: bool
    after: frozenset[FileState]


class LoadWrites:
    """What the last load of each model has changed, by the models' names."""

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}

    def add_load(self, found: FoundModel, after: FoundModel) -> bool:
        """A model that was loaded as it was found is this now. Return whether all that changed is
        what its loads write.
        """
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
            # Somebody else writes them as well.
            return False
        # A load may give a file another name each time.
        return all(path in last.changed or (last.had_new and path in new) for path in changed)

    def forget(self, name: str) -> None:
        """The model is not served any more."""
        self._loads.pop(name, None)
