"""Contract of repository agents, which check, decrypt or replace a model's files before a load.

A model asks for agents by name (model_repository_agents in its configuration). A package provides
agents as entry points of the group nereid.repository_agents. Each entry point names a class that is
derived from RepositoryAgent. Agents run in threads of executors.
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

    directory: the model's directory, with this version's folder and all files outside version
        folders. Folders of other versions may be missing.
    parameters: parameters that the model's configuration gives the agent.
    """

    name: str
    version: int
    directory: Path
    parameters: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """Raised by an agent if the model must not be loaded. Clients see the text."""


class RepositoryAgent:
    """Agent of one executor.

    Each executor creates one object of the class. Several threads may call its methods at once.
    """

    def before_load(self, model: AgentModel) -> Path | None:
        """Check or replace a model's files; return the directory to load from, or None.

        The executor calls this once, before it reads a version's file and loads instances of the
        version. It loads the model from the returned directory in place of model.directory; None
        means that it loads from model.directory itself.

        The method must not change the content of model.directory, because other loads use the
        directory, too.

        Raises:
            RefusedError: the model must not be loaded. After any other exception the model is not
                loaded either, but clients do not see the exception's text: it is only in the
                executor's log.
        """

    def after_unload(self, model: AgentModel) -> None:
        """Clean up after a version for which before_load() returned.

        The executor calls this once, after it has unloaded the version's last instance or could not
        load it. model.directory is the same as in the call of before_load().
        """
