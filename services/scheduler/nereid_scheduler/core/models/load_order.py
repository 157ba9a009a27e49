"""Sorts models into the order of loading: ensembles come after the models of their steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid_scheduler.core.models.dependencies import cycle_error, is_ensemble, step_models

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid_scheduler.core.models.found_model import FoundModel


def in_load_order(models: Iterable[FoundModel]) -> list[FoundModel]:
    """Return these models, ensembles after their steps' models. Circular ensembles come last."""
    waiting = {model.name: model for model in models}
    ordered: list[FoundModel] = []
    while waiting:
        ready = [
            model
            for model in waiting.values()
            if not any(name in waiting for name in step_models(model.draft))
        ]
        if not ready:
            return ordered + list(waiting.values())
        for model in ready:
            del waiting[model.name]
        ordered += ready
    return ordered


def refuse_cycles(models: Iterable[FoundModel]) -> list[FoundModel]:
    """Return the same models; ensembles that contain themselves get an error."""
    by_name = {model.name: model for model in models}

    def models_in(name: str) -> list[str]:
        return step_models(by_name[name].draft) if name in by_name else []

    checked = []
    for name, model in by_name.items():
        text = cycle_error(name, models_in) if is_ensemble(model.draft) else ""
        checked.append(replace(model, error=InvalidArgument(text)) if text else model)
    return checked
