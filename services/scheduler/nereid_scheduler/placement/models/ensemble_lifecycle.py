"""Life cycle of ensembles: an ensemble is ready while the models of its steps are ready.

The state of an ensemble is computed again whenever the model of one of its steps changes:

    models of its steps                                report on the ensemble's load
    each has a ready version, with an executor         up
    one has no ready version, and one is loading       loading
    one waits for an executor                          no report, as if no executor had it
    one is unloaded, has failed, or does not fit       failed, with the reason
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, NereidError
from nereid.model_config import check_step_requests, freeze_config
from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.dependencies import is_ensemble, step_model, step_models
from nereid_scheduler.core.models.lifecycle import UNLOADED, LoadStatus, VersionState
from nereid_scheduler.core.models.revision import revision_of
from nereid_scheduler.placement.models.catalogue import LATEST
from nereid_scheduler.placement.models.traffic_split import find_split
from nereid_scheduler.versions.ensembles.ensemble_dispatcher import EnsembleDispatcher
from nereid_scheduler.versions.ensembles.graphs.step_validation import check_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel, ServedVersion
    from nereid_scheduler.versions.ensembles.ensemble_dispatcher import ChooseModel
    from nereid_scheduler.versions.ensembles.graphs.graph import Step
    from nereid_scheduler.versions.model_version import ModelVersion

    # Applies an event to a version's life, and acts on the change of its state.
    ApplyEvent = Callable[[ServedVersion, Callable[[], None]], None]

# The steps report under this name, in place of an executor's.
_STEPS: Final = "steps"
_PENDING: Final = frozenset({VersionState.UNKNOWN, VersionState.LOADING})


class _StepUnloaded(InvalidArgument):
    """The model of a step was unloaded."""


class Ensembles:
    """The ensembles in service, by the models of their steps."""

    def __init__(self, catalogue: Catalogue, apply_event: ApplyEvent) -> None:
        self._catalogue = catalogue
        self._apply_event = apply_event
        self._users: dict[str, dict[ServedVersion, None]] = {}

    def add_ensemble(self, served: ServedVersion) -> None:
        """Add an ensemble that should be in service."""
        for name in step_models(served.draft):
            self._users.setdefault(name, {})[served] = None
        self._update_ensemble(served)

    def remove_ensemble(self, served: ServedVersion) -> None:
        """Remove an ensemble that was unloaded. Do nothing for any other model."""
        for name in step_models(served.draft):
            users = self._users.get(name, {})
            users.pop(served, None)
            if not users:
                self._users.pop(name, None)

    def on_model_changed(self, name: str) -> None:
        """Update the ensembles that use a model after a version of it has changed its state."""
        for served in list(self._users.get(name, ())):
            dispatcher = None if served.runtime is None else served.runtime.dispatcher
            if isinstance(dispatcher, EnsembleDispatcher):
                dispatcher.forget_models()
            self._update_ensemble(served)

    async def drain_users(self, name: str) -> None:
        """Wait for the open requests of ensembles that use this model and are no longer ready."""
        for served in list(self._users.get(name, ())):
            if served.life.state is not VersionState.READY and served.runtime is not None:
                await self.drain_users(served.name)
                await served.runtime.idle()

    def find_model(self, step: Step) -> ModelVersion:
        """Return the version that runs a step now: a ready one, or one that is being unloaded."""
        model = self._catalogue.model(step.model)
        versions = [] if model is None else model.chosen_versions(step.version or LATEST)
        running = [served for served in versions if served.runtime is not None]
        if running:
            ready = [served for served in running if served.life.state is VersionState.READY]
            return max(ready or running, key=lambda served: served.number).ready_runtime
        version = str(step.version) if step.version > 0 else ""
        return self._catalogue.require(step.model, version).ready_runtime

    def find_choice(self, step: Step) -> ChooseModel | None:
        """Return the choice for a step whose model has weights of traffic; `None` for others."""
        if step.version > 0:
            return None
        # A step's request cannot wait for a version's first load.
        split = find_split(self._catalogue, step.model, may_wait=False)
        if split is None:
            return None
        return lambda request: split.choose(request).ready_runtime

    def users_of(self, name: str) -> list[ServedVersion]:
        """Return the ensembles with a step of this model."""
        return list(self._users.get(name, ()))

    def _update_ensemble(self, served: ServedVersion) -> None:
        life, runtime = served.life, served.runtime
        if life.final or runtime is None:
            return
        revision = runtime.revision
        event: Callable[[], None]
        try:
            standing = self._standing(served)
        except NereidError as error:
            reason = UNLOADED if isinstance(error, _StepUnloaded) else error.message
            event = partial(life.report, _STEPS, LoadStatus.FAILED, reason)
        else:
            event = partial(life.forget_executor, _STEPS)
            if standing is not None:
                event = partial(life.report, _STEPS, standing)
        self._apply_event(served, event)
        if runtime.revision != revision:
            # Notify ensembles that use this one, even if its state has not changed.
            self.on_model_changed(served.name)

    def _standing(self, served: ServedVersion) -> LoadStatus | None:
        """Return a load's state, `None` while it waits for executors, or raise NereidError."""
        needed = self._step_versions(served)
        waiting = [model for model, ready in needed if ready is None]
        if waiting:
            lives = [version.life for model in waiting for version in model.versions.values()]
            return LoadStatus.LOADING if any(life.loading for life in lives) else None
        ready = [version for _, version in needed if version is not None]
        configs = {
            version.name: version.runtime.config.proto
            for version in ready
            if version.runtime is not None
        }
        check_step_requests(served.name, self._step_requests(served, {}))
        _set_decoupled(served, decoupled=check_steps(served.draft, configs))
        revisions = [version.runtime.revision for version in ready if version.runtime is not None]
        _set_revision(served, revisions)
        return LoadStatus.UP if all(version.life.up for version in ready) else None

    def _step_requests(self, served: ServedVersion, known: dict[ServedVersion, int]) -> int:
        """Return how many step requests one request causes; 0 if the model is not an ensemble."""
        if not is_ensemble(served.draft):
            return 0
        if served not in known:
            steps = [step for _, step in self._step_versions(served) if step is not None]
            known[served] = sum(1 + self._step_requests(step, known) for step in steps)
        return known[served]

    def _step_versions(
        self, served: ServedVersion
    ) -> list[tuple[ServedModel, ServedVersion | None]]:
        """Return each step's model, and the version that would run it (`None` while it loads)."""
        name, steps = served.name, served.draft.ensemble_scheduling.step
        models = {name: self._catalogue.model(name) for name in step_models(served.draft)}
        missing = [step for step, model in models.items() if model is None or model.reason]
        if missing:
            raise InvalidArgument(
                f"ensemble {name} contains models that are not available or ambiguous:"
                f" {', '.join(sorted(missing))}"
            )
        return [
            (model, _ready_version(name, model, step.model_version))
            for step in steps
            if (model := models[step_model(step)]) is not None
        ]


def _ready_version(ensemble: str, model: ServedModel, number: int) -> ServedVersion | None:
    ready = model.ready_version(number or LATEST)
    if ready is not None:
        return ready
    eligible = model.chosen_versions(number or LATEST)
    if any(version.life.state in _PENDING for version in eligible):
        return None
    start = f"ensemble '{ensemble}' depends on '{model.name}'"
    versions = model.versions.values()
    if any(version.life.state is VersionState.READY for version in versions):
        raise InvalidArgument(f"{start} whose required version {number} is not loaded.")
    if all(version.life.unload_begun or version.life.unloaded for version in versions):
        raise _StepUnloaded(f"{start}, which is unloaded")
    raise InvalidArgument(f"{start} which {_failure_text(model.name, versions)}")


def _failure_text(name: str, versions: Iterable[ServedVersion]) -> str:
    lives = [(version.number, version.life) for version in versions]
    if any(is_ensemble(version.draft) for version in versions):
        reason = "; ".join(life.reason for _, life in lives)
        return f"is not valid. Model '{name}' failed with error: {reason}"
    errors = (
        f"version {number} is at {life.state.value} state: {life.reason};" for number, life in lives
    )
    return f"has no loaded version. Model '{name}' loading failed with error: {''.join(errors)}"


def _set_decoupled(served: ServedVersion, *, decoupled: bool) -> None:
    """Make an ensemble decoupled if the model of a step is. Clients see it in the configuration."""
    runtime = served.runtime
    assert runtime is not None, "an ensemble in service without a runtime"
    config = runtime.config.proto
    if not config.HasField("model_transaction_policy") or runtime.config.decoupled != decoupled:
        proto = model_config_pb2.ModelConfig()
        proto.CopyFrom(config)
        proto.model_transaction_policy.decoupled = decoupled
        runtime.set_config(freeze_config(proto))
    served.shown = runtime.config.proto


def _set_revision(served: ServedVersion, step_revisions: Iterable[bytes]) -> None:
    runtime = served.runtime
    assert runtime is not None, "an ensemble in service without a runtime"
    digest = served.file_digest + b"".join(step_revisions)
    runtime.set_revision(revision_of(runtime.config.proto, digest))
