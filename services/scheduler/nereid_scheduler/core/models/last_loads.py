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
        # Why a model's last load was not possible, for the repository index.
        self.refusals: dict[str, str] = {}
        # Models that were in service when the scheduler last ended, and that are missing now.
        self.unrestored: set[str] = set()
        self._digests: dict[str, bytes] = {}
        # Models whose last load failed or has not ended. They may be loaded again unchanged.
        self._failed: set[str] = set()

    def begin(self, found: FoundModel) -> None:
        """Record that a load has begun, or is refused in the state in which the model was found."""
        self._digests[found.name] = found.digest
        self._failed.add(found.name)
        self.note_refusal(found)

    def end(self, name: str, *, failed: bool, retried: bool) -> None:
        """Record the end of a load; retried: the next poll loads even unchanged files."""
        if retried:
            self._digests.pop(name, None)
        if not failed:
            self._failed.discard(name)

    def on_files_written(self, found: FoundModel, after: FoundModel) -> None:
        """Record that a load has changed the model's files, which count as loaded."""
        if self._digests.get(found.name) == found.digest:
            self._digests[found.name] = after.digest

    def refuse_first(self, found: FoundModel, *, recorded: bool) -> None:
        """Record that a model cannot be loaded at the start. recorded: True if it was served."""
        assert found.error is not None, "refused without an error"
        if recorded and not found.exists:
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
            # Clients may send any names, so keep no reason for a name that is in no repository.
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
