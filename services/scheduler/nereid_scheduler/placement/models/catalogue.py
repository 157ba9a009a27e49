"""Catalogue of the models: their versions, states, and the version that a request names."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.c_integers import parse_c_integer
from nereid.core.errors import InvalidArgument, NereidError, NotFound, Unavailable
from nereid.model_config.batching_fields import (
    TARGET_P99_US,
    configured_shadow,
    configured_traffic,
    runs_at_most_once,
)
from nereid.object_store.plans.urls import is_store_url
from nereid_scheduler.core.models.dependencies import (
    is_ensemble,
    plain_name,
    step_model,
    step_models,
    step_request_id,
)
from nereid_scheduler.core.models.desired_models import NO_CAUSE, DesiredModels
from nereid_scheduler.core.models.lifecycle import VersionLife, VersionState
from nereid_scheduler.core.models.revision import revision_of
from nereid_scheduler.core.models.text_files import NO_TEXT_FILES, TextFiles
from nereid_scheduler.core.models.traffic_table import TrafficTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nereid.comparison.shadow import Shadow
    from nereid.core.traffic.weights import Traffic
    from nereid.pb import model_config_pb2 as config_pb
    from nereid_scheduler.core.models.desired_models import Cause
    from nereid_scheduler.core.models.on_demand_models import OnDemandModel
    from nereid_scheduler.core.models.overrides import OverrideDirectory
    from nereid_scheduler.core.models.traffic_table import FoundShadow, FoundTraffic
    from nereid_scheduler.versions.instance_pool import InstancePool
    from nereid_scheduler.versions.model_version import ModelVersion

LATEST: Final = -1
_MAX_VERSION: Final = (1 << 63) - 1
_SERVED: Final = frozenset({VersionState.READY, VersionState.LOADING})


@dataclass(slots=True, eq=False)
class ServedVersion:
    """One version of a model. `shown`: configuration for clients, with all instance groups.

    With --model-namespacing, `name` is qualified. `draft` is as written; `runtime` is completed.
    """

    name: str
    number: int
    path: str
    draft: config_pb.ModelConfig
    namespace: str = ""
    file_digest: bytes = b""
    # Labels of an ensemble; if `None`, the files at `path` have them.
    labels: Mapping[str, tuple[str, ...]] | None = None
    # While this object exists, the directory that was made for one load is kept.
    override_directory: OverrideDirectory | None = None
    life: VersionLife = field(default_factory=VersionLife)
    runtime: ModelVersion | None = None
    shown: config_pb.ModelConfig | None = None
    text_files: TextFiles = NO_TEXT_FILES
    # Files with which an export's configuration is completed.
    export_files: Mapping[str, bytes] = field(default_factory=dict)
    # `None` means all executors.
    hosts: frozenset[str] | None = None
    # Monotonic time.
    load_started_s: float | None = None
    load_duration_s: float | None = None
    # True if the version is added to a model in service, which stays ready meanwhile.
    is_addition: bool = False
    # True once the version was ready, or has failed.
    first_load_ended: bool = False
    # True if another scheduler may have served the version before. Its counters then continue.
    continues: bool = False
    # Why the version is being loaded or unloaded; NO_CAUSE once it has been.
    cause: Cause = NO_CAUSE
    _text_digest: bytes = b""

    def __str__(self) -> str:
        return f"'{self.name}' version {self.number}"

    @property
    def plain_name(self) -> str:
        """Name that clients use for the version's model."""
        return plain_name(self.name, self.namespace)

    @property
    def pool(self) -> InstancePool | None:
        """Instances of a model in service. An ensemble has none."""
        runtime = self.runtime
        return None if runtime is None or runtime.calls_other_models else runtime.pool

    @property
    def ready_runtime(self) -> ModelVersion:
        """Runtime of a version that is READY."""
        assert self.runtime is not None, "ready, but not in service"
        return self.runtime

    @property
    def ready_config(self) -> config_pb.ModelConfig:
        """Configuration that clients see of a version that is READY."""
        return self.shown or self.ready_runtime.config.proto

    @property
    def text_digest(self) -> bytes:
        """Digest of the configuration and the text files of a version that is READY.

        It is equal at all schedulers that serve the version as it was loaded.
        """
        if not self._text_digest:
            self._text_digest = revision_of(self.ready_config, self.text_files.encoded_states())
        return self._text_digest

    @property
    def stored_digest(self) -> bytes:
        """Digest of the files in an object store, which executors check; empty for other files."""
        return self.file_digest if is_store_url(self.path) else b""

    def record_load_times(self, now_s: float) -> None:
        """Record the times of the load. Call this after each event of the version's life."""
        if self.load_started_s is None and self.life.loading:
            self.load_started_s = now_s
        if self.load_duration_s is None and self.life.state is VersionState.READY:
            started_s = self.load_started_s
            self.load_duration_s = 0.0 if started_s is None else now_s - started_s


@dataclass(slots=True)
class ServedModel:
    """A model of the repository. `reason`: why it has no versions."""

    name: str
    versions: dict[int, ServedVersion] = field(default_factory=dict)
    reason: str = ""
    namespace: str = ""
    # As in FoundModel.
    config_sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain_name(self) -> str:
        """Name that clients use for the model."""
        return plain_name(self.name, self.namespace)

    @property
    def unloaded(self) -> bool:
        """True if no version of the model is loaded or being loaded."""
        return all(
            served.life.unload_begun or served.life.unloaded for served in self.versions.values()
        )

    @property
    def in_service(self) -> bool:
        """True if any version of the model is loaded or being loaded."""
        return any(not served.life.refused for served in self.versions.values())

    def is_loading(self, number: int) -> bool:
        """Return whether a version that a request may mean is being loaded."""
        chosen = self.chosen_versions(number)
        return any(served.life.state is VersionState.LOADING for served in chosen)

    def ready_version(self, number: int) -> ServedVersion | None:
        """Return this version if it is ready; for LATEST, the latest one that is."""
        latest = None
        for served in self.chosen_versions(number):
            if served.life.state is VersionState.READY:
                latest = served if latest is None or served.number > latest.number else latest
        return latest

    def ready_versions(self) -> list[ServedVersion]:
        """Return the versions that are ready, by number."""
        ready = VersionState.READY
        return [served for _, served in sorted(self.versions.items()) if served.life.state is ready]

    def chosen_versions(self, number: int) -> list[ServedVersion]:
        """Return the versions that a request may mean: one, or for LATEST all."""
        if number < 0:
            return list(self.versions.values())
        return [self.versions[number]] if number in self.versions else []


@dataclass(slots=True)
class Ready:
    """The version executes requests. is_chosen: for this request alone, by the model's traffic."""

    served: ServedVersion
    is_chosen: bool = False


@dataclass(slots=True)
class Loading:
    """A load in progress may make the version ready. error: what those get who do not wait."""

    error: NereidError


@dataclass(slots=True)
class OnDemand:
    """The next request loads the model, unless its load is pending already."""

    error: NereidError
    model: OnDemandModel
    is_pending: bool


@dataclass(slots=True)
class Missing:
    """This scheduler has no such version, or cannot load it."""

    error: NereidError


Resolution = Ready | Loading | OnDemand | Missing


class FoundName(NamedTuple):
    """Name of a model. `reason`: why it prevents a load. `problem`: why the last read failed."""

    plain_name: str
    reason: str = ""
    problem: str = ""


class Catalogue:
    """All models by name. A plain name that exists in several namespaces is ambiguous."""

    def __init__(
        self,
        models: Iterable[ServedModel] = (),
        desired: DesiredModels | None = None,
    ) -> None:
        self.traffic = TrafficTable(time.monotonic)
        # Models with a version whose configuration has traffic or a shadow, by qualified names.
        self.configured_traffic: set[str] = set()
        self._models: dict[str, ServedModel] = {}
        # Key: a plain name. Value: the qualified names, as keys.
        self._namespaced: dict[str, dict[str, None]] = {}
        for model in models:
            self.set_model(model)
        self._desired = desired or DesiredModels()

    def model(self, name: str) -> ServedModel | None:
        """Return the model of this name, or `None` if no model of this name was ever found."""
        return self._models.get(name)

    def models(self) -> list[ServedModel]:
        """Return all models."""
        return list(self._models.values())

    def set_model(self, model: ServedModel) -> None:
        """Add a model; it replaces any model of the same name."""
        self._models[model.name] = model
        if model.namespace:
            self._namespaced.setdefault(model.plain_name, {})[model.name] = None

    def remove_model(self, model: ServedModel) -> None:
        """Forget a model that another scheduler serves now."""
        self._models.pop(model.name, None)
        names = self._namespaced.get(model.plain_name, {})
        names.pop(model.name, None)
        if not names:
            self._namespaced.pop(model.plain_name, None)

    def qualified_names(self, name: str) -> list[str]:
        """Return the qualified names of all models that a client's plain name may mean."""
        names = self._namespaced.get(name, ())
        return (
            [qualified for qualified in names if not self._models[qualified].unloaded]
            if names
            else [name]
        )

    def cached_models(self) -> tuple[str, ...]:
        """Return the names of the models whose responses may be cached."""
        names = {
            served.plain_name
            for served in self.versions()
            if served.draft.response_cache.enable and not served.life.unload_begun
        }
        return tuple(sorted(names))

    def has_target(self, name: str) -> bool:
        """Return whether a version has a latency target, and so needs to know clients."""
        return any(
            TARGET_P99_US in served.draft.parameters
            for qualified in self.qualified_names(name)
            for served in self.running(qualified)
        )

    def is_ensemble(self, name: str) -> bool:
        """Return whether a version of a model has steps."""
        return any(
            is_ensemble(served.draft)
            for qualified in self.qualified_names(name)
            for served in self.running(qualified)
        )

    def versions(self) -> Iterator[ServedVersion]:
        """Yield every version of every model."""
        for model in self._models.values():
            yield from model.versions.values()

    def resolve(self, name: str, version: str) -> Resolution:
        """Return what serves a request for this version, or for the latest.

        Raises:
            InvalidArgument: the version is not a number.
        """
        number = parse_version(version)
        names = self.qualified_names(name)
        model = self._models.get(names[0]) if len(names) == 1 else None
        served = None if model is None else model.ready_version(number)
        if served is not None:
            return Ready(served)
        desired = self._desired
        error = self._error(name, names, number)
        if name in desired.awaited.values():
            return Loading(error)
        loads = desired.restoring if model is None else model.is_loading(number)
        on_demand = desired.on_demand.find(name)
        if on_demand is not None and on_demand.has(number):
            is_pending = on_demand.name in desired.pending_loads
            if is_pending or not (loads or self._has_ready(on_demand.name)):
                return OnDemand(error, on_demand, is_pending)
        return Loading(error) if loads else Missing(error)

    def find_traffic(self, name: str) -> FoundTraffic | None:
        """Return a model's traffic; `None` if it has none, or clients' name is ambiguous."""
        model = self._model_with_settings(name)
        if model is None:
            return None
        return self.traffic.find(model.plain_name, self._read_configured(model)[0])

    def find_shadow(self, name: str) -> FoundShadow | None:
        """Return a model's shadow; `None` if it has none, or clients' name is ambiguous."""
        model = self._model_with_settings(name)
        if model is None:
            return None
        return self.traffic.find_shadow(model.plain_name, self._read_configured(model)[1])

    def models_with_traffic(self) -> Iterator[tuple[ServedModel, Traffic]]:
        """Yield the models whose requests do not all go to the latest version."""
        for name in sorted({*self.traffic.names(), *self.configured_traffic}):
            found, model = self.find_traffic(name), self.only_model(name)
            if found is not None and model is not None:
                yield model, found.traffic

    def only_model(self, name: str) -> ServedModel | None:
        """Return the model that clients mean by a name; `None` if there is none, or several."""
        names = self.qualified_names(name)
        return self._models.get(names[0]) if len(names) == 1 else None

    def _model_with_settings(self, name: str) -> ServedModel | None:
        if not self.traffic and not self.configured_traffic:
            return None
        names = self.qualified_names(name)
        return self._models.get(names[0], ServedModel(names[0])) if len(names) == 1 else None

    def _read_configured(self, model: ServedModel) -> tuple[Traffic | None, Shadow | None]:
        """Return what the latest version's configuration says, also before it is ready."""
        if model.name not in self.configured_traffic:
            return None, None
        served = model.ready_version(LATEST)
        if served is not None:
            config = served.ready_runtime.config
            return config.traffic, config.shadow
        drafts = [each.draft for _, each in sorted(model.versions.items())]
        with suppress(InvalidArgument):
            if drafts:
                return configured_traffic(drafts[-1]), configured_shadow(drafts[-1])
        return None, None

    def require(self, name: str, version: str) -> ServedVersion:
        """Return the ready version that a request names, or the latest; raise NereidError."""
        found = self.resolve(name, version)
        if isinstance(found, Ready):
            return found.served
        raise found.error

    def ready_versions(self, name: str) -> list[ServedVersion]:
        """Return the versions of a model that are ready, by number; none if it is ambiguous."""
        model = self.only_model(name)
        return [] if model is None else model.ready_versions()

    def runs_at_most_once(self, name: str, version: str) -> bool:
        """Return whether the model, or a step's model, forbids that a request runs twice."""
        drafts = self.drafts(name, version)
        return any(map(runs_at_most_once, drafts)) or any(
            self.runs_at_most_once(step, "") for draft in drafts for step in step_models(draft)
        )

    def run_ids(self, name: str, version: str, request_id: int) -> set[int]:
        """Return the ids under which instances run a request: its own, and those of its steps."""
        ids = {request_id}
        for draft in self.drafts(name, version):
            for index, step in enumerate(draft.ensemble_scheduling.step):
                ids |= self.run_ids(step_model(step), "", step_request_id(request_id, index))
        return ids

    def drafts(self, name: str, version: str) -> list[config_pb.ModelConfig]:
        """Return the drafts of the versions that a request may mean: all if it names none."""
        number = parse_version(version)
        drafts = []
        for qualified in self.qualified_names(name):
            model = self._models.get(qualified, ServedModel(qualified))
            drafts += [served.draft for served in model.chosen_versions(number)]
        return drafts

    def running(self, name: str) -> list[ServedVersion]:
        """Return the versions of a model whose unload has not begun."""
        model = self._models.get(name, ServedModel(name))
        return [served for served in model.versions.values() if not served.life.unload_begun]

    def versions_in_service(self, name: str) -> list[int]:
        """Return the versions of a model that are ready or being loaded."""
        states = (VersionState.READY, VersionState.LOADING)
        return [served.number for served in self.running(name) if served.life.state in states]

    def is_known(self, name: str) -> bool:
        """Return whether a model is in service, is being loaded, or has failed to load."""
        model = self._models.get(name)
        return model is not None and not model.unloaded

    def is_served(self, name: str) -> bool:
        """Return whether a model is ready, or being loaded."""
        model = self._models.get(name, ServedModel(name))
        return any(served.life.state in _SERVED for served in model.versions.values())

    def is_step(self, name: str) -> bool:
        """Return whether this model runs a step of an ensemble that is or may come into service."""
        return any(
            name in step_models(served.draft)
            for served in self.versions()
            if not served.life.unload_begun and not served.life.refused
        )

    def all_serving(self) -> bool:
        """Return whether all loaded versions could execute a request: Triton's strict readiness."""
        desired = self._desired
        if desired.last_loads.unrestored or self._is_awaiting():
            return False
        return all(
            model.versions
            and all(
                served.life.serving
                or served.life.unloaded
                or _is_being_added(served)
                or self._is_moving(served)
                for served in model.versions.values()
            )
            for model in self._models.values()
            if model.name not in desired.on_demand
        )

    def all_settled(self) -> bool:
        """Return whether each version's first load has ended: Triton's lenient readiness."""
        if self._is_awaiting():
            return False
        return all(
            served.life.state is not VersionState.LOADING
            or _is_being_added(served)
            or self._is_moving(served)
            for served in self.versions()
            if served.name not in self._desired.on_demand
        )

    def _is_awaiting(self) -> bool:
        """Return whether models are still to be found, apart from those that move here."""
        desired = self._desired
        return desired.restoring or not desired.awaited.keys() <= desired.moving

    def _is_moving(self, served: ServedVersion) -> bool:
        states = (VersionState.LOADING, VersionState.UNLOADING)
        return served.name in self._desired.moving and served.life.state in states

    def _has_ready(self, name: str) -> bool:
        model = self._models.get(name)
        return model is not None and bool(model.ready_versions())

    def _error(self, name: str, names: list[str], number: int) -> NereidError:
        """Return the error of a request that no ready version serves. names: qualified names."""
        if len(names) > 1:
            return InvalidArgument(
                f"There are {len(names)} identifiers of model '{name}' in global map, model"
                " namespace must be provided to resolve ambiguity.",
                accepted=True,
            )
        if not names:
            text = f"Identifier of model '{name}' is not found in global map"
            return NotFound(text, accepted=True)
        on_demand = self._desired.on_demand.get(names[0])
        if on_demand is not None and on_demand.error is not None:
            return on_demand.error.with_traceback(None)
        prefix = f"Request for unknown model: '{names[0]}'"
        model = self._models.get(names[0])
        if model is None:
            return NotFound(f"{prefix} is not found", accepted=True)
        if number == LATEST:
            return NotFound(f"{prefix} has no available versions", accepted=True)
        if number not in model.versions:
            return NotFound(f"{prefix} version {number} is not found", accepted=True)
        return Unavailable(f"{prefix} version {number} is not at ready state", accepted=True)


def _is_being_added(served: ServedVersion) -> bool:
    return served.is_addition and served.life.state is VersionState.LOADING


def parse_version(text: str) -> int:
    """Return the version that a request names, parsed as in Triton; -1 means the latest version."""
    if not text:
        return LATEST
    number = parse_c_integer(text)
    if number is None or not -_MAX_VERSION - 1 <= number <= _MAX_VERSION:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{text}' (details: stol),"
            " version should be an integral value > 0",
            accepted=True,
        )
    if number < 0:
        raise InvalidArgument(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number
