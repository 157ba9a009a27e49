"""What repository agents implement: they check, decrypt or replace a model's files before a load.

A model asks for them by name (model_repository_agents in its configuration); a package offers its
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
    """A model version that is about to be loaded, or was unloaded.

    directory: the model's, with this version's folder and what is beside the versions; it may lack
    other versions. parameters: the agent's, of the model's configuration.
    """

    name: str
    version: int
    directory: Path
    parameters: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """The model must not be loaded; clients see the text."""


class RepositoryAgent:
    """One object for each executor, whose methods may be called by several threads at a time."""

    def before_load(self, model: AgentModel) -> Path | None:
        """Called once before a version's file is described and its instances are loaded. Returns
        the model's directory to load from in place of model.directory; None: that one.

        Must not change what is in model.directory: others load from there, too.

        Raises:
            RefusedError: the model must not be loaded. So it is after any other exception, whose
                text is in the executor's log alone.
        """

    def after_unload(self, model: AgentModel) -> None:
        """Called once after the version's last instance was unloaded, or could not be loaded, if
        before_load() returned. model.directory is as in that call.
        """
