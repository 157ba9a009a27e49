"""Which models others consist of, and in which order they come into service because of that.

Pure: configurations in, names and orders out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.model_config.backend_choice import ENSEMBLE_PLATFORM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.pb import model_config_pb2 as config_pb
    from nereid.services.scheduler.repository.repositories import FoundModel


def is_ensemble(draft: config_pb.ModelConfig) -> bool:
    """Whether a configuration is an ensemble's."""
    return draft.platform == ENSEMBLE_PLATFORM


def models_of(draft: config_pb.ModelConfig) -> list[str]:
    """The models that an ensemble consists of; none for what is no ensemble."""
    return list(dict.fromkeys(step.model_name for step in draft.ensemble_scheduling.step))


def in_order(models: Iterable[FoundModel]) -> list[FoundModel]:
    """These models, each behind those that it consists of; what goes in circles comes last."""
    waiting = {model.name: model for model in models}
    ordered: list[FoundModel] = []
    while waiting:
        ready = [
            model
            for model in waiting.values()
            if not any(name in waiting for name in models_of(model.draft))
        ]
        if not ready:
            return ordered + list(waiting.values())
        for model in ready:
            del waiting[model.name]
        ordered += ready
    return ordered


def without_circles(models: Iterable[FoundModel]) -> list[FoundModel]:
    """The same models, but those that consist of themselves with an error that says so."""
    found = {model.name: model for model in models}

    def models_in(name: str) -> list[str]:
        return models_of(found[name].draft) if name in found else []

    checked = []
    for name, model in found.items():
        text = circle_text(name, models_in) if is_ensemble(model.draft) else ""
        checked.append(replace(model, error=InvalidArgument(text)) if text else model)
    return checked


def circle_text(name: str, models_in: Callable[[str], Iterable[str]]) -> str:
    """How a model consists of itself, in Triton's words; empty: it does not.

    models_in: the models that one consists of.
    """
    seen: set[str] = set()
    pending = [name]
    while pending:
        user = pending.pop()
        for each in models_in(user):
            if each == name:
                return f"circular dependency between ensembles: {name} -> ... -> {user} -> {name}"
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return ""
