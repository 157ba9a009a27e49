"""Checks whether a principal may use the models of the steps in a load request's configuration."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nereid.core.errors import NereidError, PermissionDenied
from nereid_scheduler.core.models.dependencies import step_models

if TYPE_CHECKING:
    from nereid.core.permitted_models import PermittedModels
    from nereid.pb import model_config_pb2 as config_pb
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.core.models.overrides import Override
    from nereid_scheduler.placement.models.catalogue import Catalogue


class StepRights:
    """Checks the configurations in load requests against existing models."""

    def __init__(self, repositories: Repositories, catalogue: Catalogue) -> None:
        self._repositories = repositories
        self._catalogue = catalogue

    async def check(self, name: str, override: Override | None, permitted: PermittedModels) -> None:
        """Raise PermissionDenied if a model's steps, or their steps, are not permitted.

        A model that cannot be read counts as having no steps; its load will fail.
        """
        drafts = await asyncio.to_thread(self._read_drafts, name, override)
        pending = [(name, step) for draft in drafts for step in step_models(draft)]
        seen: set[str] = set()
        while pending:
            ensemble, step = pending.pop()
            if step in seen:
                continue
            seen.add(step)
            model = self._repositories.plain_name(step)
            if not permitted.models.match(model):
                patterns = (
                    ", ".join(f"'{pattern}'" for pattern in permitted.models.patterns) or "no model"
                )
                raise PermissionDenied(
                    f"'{permitted.principal}' has no right to use model '{model}', a step of"
                    f" ensemble '{ensemble}': its grant is for {patterns}"
                )
            drafts = [served.draft for served in self._catalogue.running(step)]
            if not drafts:
                drafts = [(await asyncio.to_thread(self._repositories.require, step)).draft]
            pending += [(model, inner) for draft in drafts for inner in step_models(draft)]

    def _read_drafts(self, name: str, override: Override | None) -> list[config_pb.ModelConfig]:
        repositories = self._repositories
        try:
            if override is not None and override.files:
                return [repositories.outline(name, override.config).draft]
            names = repositories.qualified_names(name, override)
            return [repositories.require(qualified, override).draft for qualified in names]
        except (NereidError, OSError):
            return []
