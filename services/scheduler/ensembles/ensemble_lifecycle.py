"""The lives of ensembles: one is ready while its steps' models are, and goes and comes with them.

Judges an ensemble anew whenever something happens to a model that it consists of. Sends nothing
and waits for nothing but ensembles' last requests.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.errors import InvalidArgument, NereidError
from nereid.model_config import freeze_config
from nereid.pb import model_config_pb2
from nereid.services.scheduler.caching.response_cache import place_of
from nereid.services.scheduler.ensembles.ensemble_version import EnsembleVersion
from nereid.services.scheduler.ensembles.step_validation import check_steps
from nereid.services.scheduler.models.dependencies import is_ensemble, models_of
from nereid.services.scheduler.models.lifecycle import UNLOADED, Standing, VersionState
from nereid.services.scheduler.repository.revision import revision_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.services.scheduler.ensembles.graph import Step
    from nereid.services.scheduler.models.catalogue import Catalogue, ServedModel, ServedVersion
    from nereid.services.scheduler.models.model_version import ModelVersion
    from nereid.services.scheduler.requests.nested_calls import Lineage

# In an ensemble's life its steps' models stand where others have executors.
_STEPS: Final = "steps"
_COMING: Final = frozenset({VersionState.UNKNOWN, VersionState.LOADING})


class Hands(Protocol):
    """What is asked of the loader."""

    def settle(self, served: ServedVersion, event: Callable[[], None]) -> None:
        """Let something happen to a version's life, with all that follows."""


class _Unloaded(InvalidArgument):
    """A model that is needed was taken out of service."""


class Ensembles:
    """The ensembles in service, by the models of their steps."""

    def __init__(self, hands: Hands, catalogue: Catalogue, lineage: Lineage | None = None) -> None:
        self._hands = hands
        self._catalogue = catalogue
        self._lineage = lineage
        self._users: dict[str, dict[ServedVersion, None]] = {}

    def add(self, served: ServedVersion) -> None:
        """An ensemble with a runtime is to be in service."""
        for name in models_of(served.draft):
            self._users.setdefault(name, {})[served] = None
        if isinstance(served.runtime, EnsembleVersion):
            served.runtime.find_model = self._find
            served.runtime.lineage = self._lineage
        self._judge(served)

    def remove(self, served: ServedVersion) -> None:
        """It is no longer."""
        for name in models_of(served.draft):
            users = self._users.get(name, {})
            users.pop(served, None)
            if not users:
                self._users.pop(name, None)

    def changed(self, name: str) -> None:
        """Something has happened to a model."""
        for served in list(self._users.get(name, ())):
            if isinstance(served.runtime, EnsembleVersion):
                served.runtime.forget_models()
            self._judge(served)

    async def drained(self, name: str) -> None:
        """Wait for the last requests of those that end with this model: they still need it."""
        for served in list(self._users.get(name, ())):
            if served.life.state is not VersionState.READY and served.runtime is not None:
                await self.drained(served.name)
                await served.runtime.idle()

    def _find(self, step: Step) -> ModelVersion:
        """The version that runs a step now; for those that end, one that ends as well."""
        model = self._catalogue.model(step.model)
        versions = [] if model is None else _chosen(model, step.version)
        running = [each for each in versions if each.runtime is not None]
        ready = [each for each in running if each.life.state is VersionState.READY]
        if ready or running:
            latest = max(ready or running, key=lambda served: served.number)
            assert latest.runtime is not None, "chosen for its runtime"
            return latest.runtime
        version = str(step.version) if step.version > 0 else ""
        found = self._catalogue.find(step.model, version).runtime
        assert found is not None, "ready, but not in service"
        return found

    # ---- an ensemble's standing

    def _judge(self, served: ServedVersion) -> None:
        life, runtime = served.life, served.runtime
        if life.final or runtime is None:
            return
        revision = runtime.revision
        event: Callable[[], None]
        try:
            standing = self._standing(served)
        except NereidError as error:
            reason = UNLOADED if isinstance(error, _Unloaded) else error.message
            event = partial(life.report, _STEPS, Standing.FAILED, reason)
        else:
            event = partial(life.forget, _STEPS)
            if standing is not None:
                event = partial(life.report, _STEPS, standing)
        self._hands.settle(served, event)
        if runtime.revision != revision:
            # Perhaps in the same state as before, and yet something else.
            self.changed(served.name)

    def _standing(self, served: ServedVersion) -> Standing | None:
        """How far it has come; None: what it consists of waits for executors.

        Raises:
            NereidError: it cannot be served as things are.
        """
        needed = self._needed(served)
        waiting = [model for model, ready in needed if ready is None]
        if waiting:
            lives = [each.life for model in waiting for each in model.versions.values()]
            return Standing.LOADING if any(life.attempted for life in lives) else None
        ready = [each for _, each in needed if each is not None]
        configs = {
            each.name: each.runtime.config.proto for each in ready if each.runtime is not None
        }
        _configure(served, decoupled=check_steps(served.draft, configs))
        _revise(served, [each.runtime.revision for each in ready if each.runtime is not None])
        return Standing.UP if all(each.life.up for each in ready) else None

    def _needed(self, served: ServedVersion) -> list[tuple[ServedModel, ServedVersion | None]]:
        """Its steps' models, each with the version that would run it, or None while that loads."""
        name, steps = served.name, served.draft.ensemble_scheduling.step
        models = {step.model_name: self._catalogue.model(step.model_name) for step in steps}
        missing = [step for step, model in models.items() if model is None or model.refusal]
        if missing:
            raise InvalidArgument(
                f"ensemble {name} contains models that are not available or ambiguous:"
                f" {', '.join(sorted(missing))}"
            )
        return [
            (model, _ready_version(name, model, step.model_version))
            for step in steps
            if (model := models[step.model_name]) is not None
        ]


def _chosen(model: ServedModel, number: int) -> list[ServedVersion]:
    """The versions that a step may mean."""
    return [each for each in model.versions.values() if number <= 0 or each.number == number]


def _ready_version(ensemble: str, model: ServedModel, number: int) -> ServedVersion | None:
    chosen = _chosen(model, number)
    ready = [each for each in chosen if each.life.state is VersionState.READY]
    if ready:
        return max(ready, key=lambda served: served.number)
    if any(each.life.state in _COMING for each in chosen):
        return None
    start = f"ensemble '{ensemble}' depends on '{model.name}'"
    others = model.versions.values()
    if any(each.life.state is VersionState.READY for each in others):
        raise InvalidArgument(f"{start} whose required version {number} is not loaded.")
    if all(each.life.gone or each.life.unloaded for each in others):
        raise _Unloaded(f"{start}, which is unloaded")
    raise InvalidArgument(f"{start} which {_failure(model.name, others)}")


def _failure(name: str, versions: Iterable[ServedVersion]) -> str:
    """What has become of a model none of whose versions is loaded."""
    lives = [(each.number, each.life) for each in versions]
    if any(is_ensemble(each.draft) for each in versions):
        reason = "; ".join(life.reason for _, life in lives)
        return f"is not valid. Model '{name}' failed with error: {reason}"
    errors = (
        f"version {number} is at {life.state.value} state: {life.reason};" for number, life in lives
    )
    return f"has no loaded version. Model '{name}' loading failed with error: {''.join(errors)}"


def _configure(served: ServedVersion, *, decoupled: bool) -> None:
    """Note what an ensemble takes on from its steps' models, and what clients are told of it."""
    runtime = served.runtime
    assert runtime is not None, "an ensemble in service without a runtime"
    told = runtime.config.proto
    if not told.HasField("model_transaction_policy") or runtime.config.decoupled != decoupled:
        proto = model_config_pb2.ModelConfig()
        proto.CopyFrom(told)
        proto.model_transaction_policy.decoupled = decoupled
        runtime.config = freeze_config(proto)
    served.shown = runtime.config.proto


def _revise(served: ServedVersion, steps: Iterable[bytes]) -> None:
    """An ensemble's answers are those of its steps' models as they are, told by its labels."""
    runtime = served.runtime
    assert runtime is not None, "an ensemble in service without a runtime"
    runtime.revision = revision_of(runtime.config.proto, served.files + b"".join(steps))
    if runtime.cache is not None:
        place = place_of(served.name, served.number, runtime.revision)
        # Of several answers none can be kept.
        runtime.cache.revise(None if runtime.config.decoupled else place)
