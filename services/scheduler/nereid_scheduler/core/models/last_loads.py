"""Results of the models' last loads: what the files were, and why a load was not possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_scheduler.core.models.found_model import NotUnique
from nereid_scheduler.core.models.lifecycle import reason_of

if TYPE_CHECKING:
    from nereid_scheduler.core.models.found_model import FoundModel


class LastLoads:
    """Results of the last loads, by the models' qualified names."""

    def __init__(self) -> None:
        # Key: a model. Value: why its last load was not possible, as the repository index shows it.
        self.refusals: dict[str, str] = {}
        # Models that were in service when the scheduler last ended, and that are missing now.
        self.unrestored: set[str] = set()
        # `FoundModel.digest` of each model when it was last loaded or refused.
        self._digests: dict[str, bytes] = {}
        # Models whose last load failed or has not ended. They may be loaded again even if their
        # files have not changed.
        self._failed: set[str] = set()

    def begin(self, found: FoundModel) -> None:
        """Record that a load has begun, or is refused in the state in which the model was found."""
        self._digests[found.name] = found.digest
        self._failed.add(found.name)
        self.note_refusal(found)

    def end(self, name: str, *, failed: bool, retried: bool) -> None:
        """Record the end of a load.

        retried: True if the next poll loads the model again, even without a change of its files.
        """
        if retried:
            self._digests.pop(name, None)
        if not failed:
            self._failed.discard(name)

    def on_files_written(self, found: FoundModel, after: FoundModel) -> None:
        """Record that a load has changed the model's files. The changed files count as loaded.

        found: the model before the load. after: the model after the load.
        """
        if self._digests.get(found.name) == found.digest:
            self._digests[found.name] = after.digest

    def refuse_first(self, found: FoundModel, *, recorded: bool) -> None:
        """Record that a model cannot be loaded at the start. recorded: True if it was served."""
        assert found.error is not None, "refused without an error"
        if recorded and not found.exists:
            # Show in the index that the model is missing.
            self.unrestored.add(found.name)
            self.refusals[found.name] = reason_of(found.error.code, found.error.message)
        elif found.exists and not isinstance(found.error, NotUnique):
            self._digests[found.name] = found.digest
            self._failed.add(found.name)

    def note_refusal(self, found: FoundModel) -> None:
        """Set the reason that the index shows for a model that cannot be loaded, or remove it."""
        self.refusals.pop(found.name, None)
        if found.error is None:
            self.unrestored.discard(found.name)
        elif found.digest:
            # Keep no reason for a name that is in no repository: clients may send any names.
            self.refusals[found.name] = reason_of(found.error.code, found.error.message)

    def forget(self, name: str) -> None:
        """Forget the result of a model's last load."""
        self._digests.pop(name, None)
        self._failed.discard(name)
        self.refusals.pop(name, None)
        self.unrestored.discard(name)

    def has_changed(self, found: FoundModel) -> bool:
        """Return whether a model has changed since it was last loaded or refused."""
        return self._digests.get(found.name) != found.digest

    def has_failed(self, name: str) -> bool:
        """Return whether a model's last load failed."""
        return name in self._failed
