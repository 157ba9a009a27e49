"""The repository agents of an executor: Nereid's own agents and those of installed packages."""

from __future__ import annotations

import logging
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, NereidError
from nereid.repository_agents import AgentModel, RefusedError, RepositoryAgent
from nereid_executor.repository.checksum import ChecksumAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nereid.pb import model_config_pb2 as config_pb

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "nereid.repository_agents"


def installed_agents() -> dict[str, Callable[[], RepositoryAgent]]:
    """Return all agents' constructors by name. Packages' agents replace Nereid's."""

    def load(name: str) -> RepositoryAgent:
        agent: RepositoryAgent = packaged[name].load()()
        return agent

    packaged = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    own: dict[str, Callable[[], RepositoryAgent]] = {"checksum": ChecksumAgent}
    return own | {name: lambda name=name: load(name) for name in packaged}


class AgentRun(NamedTuple):
    """An agent that has prepared a model, with the arguments that it was given."""

    name: str
    agent: RepositoryAgent
    model: AgentModel


class RepositoryAgents:
    """The agents of one executor. Thread-safe."""

    def __init__(self, makers: Mapping[str, Callable[[], RepositoryAgent]]) -> None:
        self._makers = makers
        self._agents: dict[str, RepositoryAgent] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """Sorted names of all installed agents."""
        return sorted(self._makers)

    def before_load(
        self, config: config_pb.ModelConfig, version: int, directory: Path
    ) -> tuple[Path, list[AgentRun]]:
        """Run a configuration's agents in order; return the model's directory and the runs.

        Each agent gets the directory that the previous one returned. Pass the runs to
        after_unload(); if an agent raises NereidError, earlier ones were told that the model has
        ended.
        """
        runs: list[AgentRun] = []
        try:
            for asked in config.model_repository_agents.agents:
                agent = self._agent(asked.name)
                model = AgentModel(config.name, version, directory, dict(asked.parameters))
                returned = self._call(asked.name, agent, model)
                runs.append(AgentRun(asked.name, agent, model))
                directory = directory if returned is None else returned
        except NereidError:
            self.after_unload(runs)
            raise
        return directory, runs

    def after_unload(self, runs: Sequence[AgentRun]) -> None:
        """Tell the agents that the model has ended, the last agent first."""
        for run in reversed(runs):
            try:
                run.agent.after_unload(run.model)
            except Exception:
                _log.exception(
                    "repository agent '%s' failed after the unload of '%s'",
                    run.name,
                    run.model.name,
                )

    def _agent(self, name: str) -> RepositoryAgent:
        if name not in self._makers:
            raise InvalidArgument(f"unable to find repository agent '{name}'")
        with self._lock:
            if name not in self._agents:
                try:
                    self._agents[name] = self._makers[name]()
                except Exception as error:
                    _log.exception("repository agent '%s' cannot be made", name)
                    raise Internal(f"unable to load repository agent '{name}'") from error
            return self._agents[name]

    def _call(self, name: str, agent: RepositoryAgent, model: AgentModel) -> Path | None:
        try:
            return agent.before_load(model)
        except NereidError:
            raise
        except RefusedError as error:
            text = str(error) or f"repository agent '{name}' refused it"
            raise InvalidArgument(text) from error
        except Exception as error:
            _log.exception("repository agent '%s' failed before the load of %s", name, model.name)
            raise Internal(f"repository agent '{name}' failed: {INTERNAL_MESSAGE}") from error
