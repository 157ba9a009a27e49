"""What the settings say of loading: from a version's configuration to its queue and its instances.

Knows no executor and no life cycle.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.core.classification import read_labels
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.model_config import freeze_config
from nereid.model_config.backend_choice import ENSEMBLE_PLATFORM
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.caching.response_cache import ResponseCache
from nereid.services.scheduler.ensembles.ensemble_version import EnsembleVersion
from nereid.services.scheduler.models.config_completion import complete
from nereid.services.scheduler.models.decoupled_version import DecoupledVersion
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.warmup_validation import check_samples
from nereid.services.scheduler.observability.latencies import MetricsConfig
from nereid.services.scheduler.requests.shared_tensors import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.caching.cache_client import CacheClient
    from nereid.services.scheduler.executors.sessions import Placed
    from nereid.services.scheduler.models.catalogue import ServedVersion
    from nereid.services.scheduler.models.config_completion import CompletionRules
    from nereid.services.scheduler.observability.request_traces import Traces

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much a model version bears with. max_queue_size 0: any number of requests."""

    max_queue_size: int = 0
    max_retries: int = 2
    no_executor_timeout_s: float = 30.0


@dataclass(frozen=True)
class LoadRules:
    """The rules. cache None: there is no cache."""

    completion: CompletionRules
    backend_settings: Callable[[str], dict[str, str]]
    limits: QueueLimits
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    traces: Traces | None = None
    cache: CacheClient | None = None
    shared_tensors: SharedTensors = field(default_factory=SharedTensors)

    def make_runtime(self, served: ServedVersion, described: pb.Described | None) -> ModelVersion:
        """A version's queue, once its configuration is whole.

        Raises:
            NereidError: the configuration is wrong, or does not fit the model file.
        """
        try:
            config = complete(served.draft, described, self.completion)
            check_samples(config)
        except NereidError:
            raise
        except Exception as error:
            _log.exception("the configuration of %s cannot be completed", served)
            raise Internal(INTERNAL_MESSAGE) from error
        kind: type[ModelVersion] = ModelVersion
        if config.platform == ENSEMBLE_PLATFORM:
            kind = EnsembleVersion
        elif config.decoupled:
            kind = DecoupledVersion
        runtime = kind(config, served.number, self.limits, self.traces)
        if isinstance(runtime, EnsembleVersion):
            # A few lines, for those that have them; executors read those of other models.
            runtime.heads.labels = read_labels(config.proto, Path(served.path).parent)
        if config.response_cache and self.cache is not None:
            runtime.cache = ResponseCache(runtime, self.cache, self.limits.max_queue_size)
        runtime.shared_tensors = self.shared_tensors
        runtime.statistics.latencies = self.metrics.latencies_of(config)
        return runtime

    def load_command(self, placed: Placed) -> pb.ExecutorCommand:
        """What tells an executor to load an instance."""
        served, slot = placed.served, placed.slot
        config = config_of(served)
        load = pb.LoadInstance(
            instance=placed.instance.id,
            config=config.proto,
            version=served.number,
            version_path=served.path,
            instance_name=slot.name,
            kind=slot.kind,
            device_id=slot.device_id,
            backend_settings=self.backend_settings(config.backend),
            memory_domain=self.shared_tensors.domain,
        )
        return pb.ExecutorCommand(load=load)


def config_of(served: ServedVersion) -> ModelConfig:
    """The whole configuration of a version that has one."""
    assert served.runtime is not None, "placed before its configuration was whole"
    return served.runtime.config


def with_groups_of(config: ModelConfig, draft: model_config_pb2.ModelConfig) -> ModelConfig:
    """The configuration with the instance groups and the version policy of another draft.

    Raises:
        NereidError: these make no sense.
    """
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config.proto)
    del changed.instance_group[:]
    changed.instance_group.extend(draft.instance_group)
    if draft.HasField("version_policy"):
        changed.version_policy.CopyFrom(draft.version_policy)
    else:
        changed.version_policy.latest.num_versions = 1
    return freeze_config(changed)
