"""Contract of repository agents, which check, decrypt or replace a model's files before a load.

A model asks for agents by name (model_repository_agents). An entry point of the group
nereid.repository_agents names a class derived from RepositoryAgent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class AgentModel:
    """Version of a model that is about to be loaded, or that was unloaded.

    Folders of other versions may be missing from the directory.
    """

    name: str
    version: int
    directory: Path
    parameters: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """Raised by an agent if the model must not be loaded. Clients see the text."""


class RepositoryAgent:
    """Agent of one executor, whose methods several threads may call at once."""

    def before_load(self, model: AgentModel) -> Path | None:
        """Check or replace a model's files; return the directory to load from, or None.

        This is called once, before a version's file is read. None means model.directory, whose
        content must not change, because other loads use it. Raises RefusedError if the model must
        not be loaded. After any other exception it is not loaded either, but clients do not see the
        text.
        """

    def after_unload(self, model: AgentModel) -> None:
        """Clean up after a version for which before_load() returned.

        This is called once, after the version's last instance was unloaded or could not be loaded.
        """
