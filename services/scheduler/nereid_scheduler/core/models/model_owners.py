"""Division of the models among schedulers. Admission and control ask only here about others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from nereid_scheduler.core.models.found_model import FoundModel


class ModelOwners(Protocol):
    """The division of the models among the schedulers of a mesh."""

    def owns(self, name: str) -> bool:
        """Return whether this scheduler owns a model."""

    def select(self, found: list[FoundModel]) -> list[FoundModel]:
        """Return those of the found models that this scheduler owns."""

    def has_moved(self, plain_name: str) -> bool:
        """Return whether a model that is not served here is, or will be, at another scheduler."""

    def is_elsewhere(self, plain_name: str) -> bool:
        """Return whether another scheduler has a model."""


class OneOwner(ModelOwners):
    """The division in a mesh with one scheduler, which owns all models."""

    def owns(self, name: str) -> bool:  # noqa: ARG002 - of ModelOwners
        """Return True."""
        return True

    def select(self, found: list[FoundModel]) -> list[FoundModel]:
        """Return all models."""
        return found

    def has_moved(self, plain_name: str) -> bool:  # noqa: ARG002 - of ModelOwners
        """Return False."""
        return False

    def is_elsewhere(self, plain_name: str) -> bool:  # noqa: ARG002 - of ModelOwners
        """Return False."""
        return False


ONE_OWNER: Final = OneOwner()
