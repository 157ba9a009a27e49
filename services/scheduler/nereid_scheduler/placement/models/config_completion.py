"""Completes a model's config.pbtxt with what the model file says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.model_config import (
    CompletionSettings,
    complete_config,
    freeze_config,
    is_incomplete,
    read_description,
    validate_config,
)
from nereid.text.export_batching import complete_export, takes_lone_rows
from nereid.text.export_states import add_states
from nereid_scheduler.core.models.dependencies import is_ensemble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.model_config import ModelConfig
    from nereid.pb import model_config_pb2 as config_pb
    from nereid.pb import nereid_pb2 as pb

_BATCH_SIZE_KEY: Final = "default-max-batch-size"
_BATCH_SIZE_DEFAULT: Final = 4


@dataclass(frozen=True)
class CompletionRules:
    """Settings of completion: whether it is disabled, and each backend's --backend-config."""

    disabled: bool
    backend_settings: Callable[[str], dict[str, str]]

    def of(self, backend: str) -> CompletionSettings:
        """Return the settings for one backend's models."""
        text = self.backend_settings(backend).get(_BATCH_SIZE_KEY, str(_BATCH_SIZE_DEFAULT))
        try:
            size = int(text)
        except ValueError as error:
            raise InvalidArgument(
                f"--backend-config: {_BATCH_SIZE_KEY} of '{backend}' is '{text}', expected a number"
            ) from error
        return CompletionSettings(default_max_batch_size=size, disable_auto_complete=self.disabled)


def needs_description(draft: config_pb.ModelConfig, rules: CompletionRules) -> bool:
    """Return whether an executor must read the model file to complete the configuration."""
    return not rules.disabled and is_incomplete(draft)


def complete(
    draft: config_pb.ModelConfig,
    described: pb.Described | None,
    rules: CompletionRules,
    export_files: Mapping[str, bytes] | None = None,
) -> ModelConfig:
    """Return the configuration to serve with, or raise NereidError if it cannot be served.

    export_files: see FoundModel.
    """
    description = None
    if described is not None and described.HasField("config"):
        # The model's own code has completed the configuration.
        draft = described.config
    elif described is not None and (described.inputs or described.outputs):
        description = read_description(described)
    settings = rules.of(draft.backend)
    if description is not None and export_files and takes_lone_rows(description, export_files):
        settings = replace(settings, default_max_batch_size=0)
    completed = complete_config(
        draft, model_name=draft.name, description=description, settings=settings
    )
    if description is not None and export_files and not rules.disabled:
        if add_states(completed, export_files):
            completed = complete_config(
                completed, model_name=draft.name, description=description, settings=settings
            )
        complete_export(completed, export_files, draft)
        validate_config(completed)
    return freeze_config(completed)


def check_servable(draft: config_pb.ModelConfig) -> None:
    """Raise if the configuration asks for a feature that is not offered, rather than ignore it."""
    agents = [agent.name for agent in draft.model_repository_agents.agents]
    if agents and is_ensemble(draft):
        # Repository agents run in executors, but no executor loads an ensemble.
        names = ", ".join(f"'{name}'" for name in agents)
        raise Unimplemented(
            f"model '{draft.name}': repository agents are not offered for ensembles: {names}"
        )
