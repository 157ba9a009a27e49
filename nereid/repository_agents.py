"""Contract of repository agents, which check, decrypt or replace a model's files before a load.

A model asks for agents by name (model_repository_agents in its configuration). A package offers its
own as entry points of the group nereid.repository_agents, each a class derived from
RepositoryAgent. They run in executors, in threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class AgentModel:
    """Model version that is about to be loaded, or was unloaded.

    directory: the model's directory, with this version's folder and everything beside the versions;
        it may lack other versions.
    parameters: the agent's parameters in the model's configuration.
    """

    name: str
    version: int
    directory: Path
    parameters: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """The model must not be loaded; clients see the text."""


class RepositoryAgent:
    """Agent of one executor.

    Each executor has one object, whose methods may be called by several threads at a time.
    """

    def before_load(self, model: AgentModel) -> Path | None:
        """Check or replace a model's files; return the directory to load from, or None.

        Called once before a version's file is described and its instances are loaded. The returned
        directory is a model's directory that is used in place of model.directory; None means
        model.directory itself.

        Must not change the content of model.directory: other loads use it, too.

        Raises:
            RefusedError: the model must not be loaded. After any other exception it is not loaded
                either, but the exception's text is only in the executor's log.
        """

    def after_unload(self, model: AgentModel) -> None:
        """Clean up after a version, if before_load() returned for it.

        Called once after the version's last instance was unloaded, or could not be loaded.
        model.directory is the same as in that call.
        """
