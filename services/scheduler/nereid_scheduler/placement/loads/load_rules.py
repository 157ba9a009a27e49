"""Rules by which the settings shape a load: configuration, queue and commands."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid.core.tensors.classification import read_labels
from nereid.model_config import freeze_config
from nereid.model_config.validation.file_names import validate_file_names
from nereid.model_config.validation.runtimes import validate_runtime
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.measurements.latencies import MetricsConfig
from nereid_scheduler.core.measurements.timeline import NO_TIMELINE
from nereid_scheduler.core.models.allowed_backends import ALL_BACKENDS, AllowedBackends
from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.core.requests.segment_owners import SegmentOwners
from nereid_scheduler.placement.models.config_completion import complete
from nereid_scheduler.versions.ensembles.ensemble_dispatcher import EnsembleDispatcher
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.steps import Steps
from nereid_scheduler.versions.tracing.traces import NO_TRACES
from nereid_scheduler.versions.validation.warmup_validation import check_samples
from nereid_scheduler.versions.version_context import VersionContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.model_config import ModelConfig
    from nereid.timeline.recorder import RecordEvent
    from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.placement.executors.sessions import PlacedInstance
    from nereid_scheduler.placement.models.catalogue import ServedVersion
    from nereid_scheduler.placement.models.config_completion import CompletionRules
    from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles
    from nereid_scheduler.versions.caching.cache_client import CacheClient
    from nereid_scheduler.versions.queue_limits import QueueLimits
    from nereid_scheduler.versions.tracing.traces import Traces
    from nereid_scheduler.versions.waits.nested_calls import NestedCalls

_log = logging.getLogger(__name__)


class Claimant(Protocol):
    """One of several schedulers that load models, such as Membership."""

    name: str
    epoch: int


def _any_bytes(executor: str) -> Mapping[str, int]:  # noqa: ARG001 (of all)
    return {}


@dataclass(frozen=True)
class LoadRules:
    """Rules for the loads of all models. An optional part that is `None` is not in use."""

    completion: CompletionRules
    backend_settings: Callable[[str], dict[str, str]]
    limits: QueueLimits
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    traces: Traces = NO_TRACES
    cache: CacheClient | None = None
    segment_owners: SegmentOwners = field(default_factory=SegmentOwners)
    backends: AllowedBackends = ALL_BACKENDS
    snapshots: CacheClient | None = None
    rate_limiter: RateLimiter[RemoteInstance] | None = None
    # `None` if the mesh has one scheduler.
    claimant: Claimant | None = None
    # Maps an executor to the maximum bytes, by device, of instances kept for other schedulers. A
    # device without an entry has no limit.
    kept_bytes: Callable[[str], Mapping[str, int]] = _any_bytes
    timeline: SchedulerTimeline = NO_TIMELINE
    steps: Steps = field(default_factory=Steps)

    @property
    def record_event(self) -> RecordEvent:
        """Function that records an event for the timeline and the console."""
        return self.timeline.events.record

    def check_draft(self, draft: model_config_pb2.ModelConfig) -> None:
        """Raise NereidError if the backend, its library or the name of a file is refused."""
        validate_file_names(draft)
        if not is_ensemble(draft):
            self.backends.require(draft.backend, draft.name)
            validate_runtime(draft)

    def create_runtime(
        self,
        served: ServedVersion,
        described: pb.Described | None,
        ensembles: Ensembles,
        nested_calls: NestedCalls,
    ) -> ModelVersion:
        """Return a version's queue, once its configuration is complete.

        Raises NereidError if the configuration is wrong, or does not fit the model file.
        """
        config = self._complete_config(served, described)
        # Check again: the executor's description may have changed the configuration, and is not
        # trusted.
        self.check_draft(config.proto)
        context = VersionContext(
            self.limits,
            self.traces,
            self.cache,
            self.segment_owners,
            self.metrics.latencies_of(config),
            self.snapshots,
            None if config.platform == ENSEMBLE_PLATFORM else self.rate_limiter,
            self.timeline,
            self.steps,
        )
        if config.platform == ENSEMBLE_PLATFORM:
            # Executors read the labels of other models.
            labels = served.labels
            if labels is None:
                labels = read_labels(config.proto, Path(served.path).parent)
            make_dispatcher = partial(
                EnsembleDispatcher,
                find_model=ensembles.find_model,
                find_choice=ensembles.find_choice,
                nested_calls=nested_calls,
                labels=labels,
            )
            return ModelVersion(config, served.number, context, make_dispatcher)
        return ModelVersion(config, served.number, context)

    def load_command(self, placed: PlacedInstance) -> pb.ExecutorCommand:
        """Return the command for an executor to load an instance."""
        served, slot = placed.served, placed.slot
        config = full_config_of(served)
        load = pb.LoadInstance(
            instance=placed.instance.id,
            config=config.proto,
            version=served.number,
            version_path=served.path,
            instance_name=slot.name,
            kind=slot.kind,
            device_id=slot.device_id,
            backend_settings=self.backend_settings(config.backend),
            shm_namespace=self.segment_owners.domain if placed.instance.shares else "",
            model="" if served.name == config.name else served.name,
            files_digest=served.stored_digest,
            kept_bytes=self.kept_bytes(placed.session.name),
        )
        if self.claimant is not None:
            load.scheduler, load.epoch = self.claimant.name, self.claimant.epoch
        return pb.ExecutorCommand(load=load)

    def _complete_config(
        self, served: ServedVersion, described: pb.Described | None
    ) -> ModelConfig:
        try:
            config = complete(served.draft, described, self.completion, served.export_files)
            check_samples(config)
        except NereidError:
            raise
        except Exception as error:
            _log.exception("the configuration of %s cannot be completed", served)
            raise Internal(INTERNAL_MESSAGE) from error
        return config


def full_config_of(served: ServedVersion) -> ModelConfig:
    """Return the completed configuration of a version that has a runtime."""
    assert served.runtime is not None, "placed before its configuration was complete"
    return served.runtime.config


def with_instance_groups_of(
    config: ModelConfig, draft: model_config_pb2.ModelConfig
) -> ModelConfig:
    """Return a configuration with another draft's groups and policy; may raise NereidError."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config.proto)
    del changed.instance_group[:]
    changed.instance_group.extend(draft.instance_group)
    if draft.HasField("version_policy"):
        changed.version_policy.CopyFrom(draft.version_policy)
    else:
        changed.version_policy.latest.num_versions = 1
    return freeze_config(changed)
