"""Creates the parts of a scheduler that choose its models, and that load and unload models."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nereid.object_store.settings import store_environ
from nereid.rpc.net.scheduler_addresses import parse_addresses
from nereid_scheduler.control.reconciler.reconciler import Reconciler, Sources
from nereid_scheduler.control.repository.config_files import ConfigFiles
from nereid_scheduler.control.repository.recorded_models import NO_RECORDED_MODELS, RecordedModels
from nereid_scheduler.control.repository.repositories import Repositories
from nereid_scheduler.control.repository.stored_repository import open_stored_repositories
from nereid_scheduler.control.residency.on_demand import OnDemandLoads
from nereid_scheduler.control.residency.policies.policy import Residency
from nereid_scheduler.control.residency.policies.popularity import Popularity
from nereid_scheduler.control.rollouts.rollouts import Rollouts
from nereid_scheduler.control.rollouts.shadow_difference import shadow_difference
from nereid_scheduler.control.rules import EXPLICIT, ModelControlRules
from nereid_scheduler.control.shards.members.membership import Membership
from nereid_scheduler.control.shards.members.ownership import OwnedModels
from nereid_scheduler.control.shards.model_moves import ModelMoves
from nereid_scheduler.control.shards.shard import Shard
from nereid_scheduler.control.sources.model_control import ModelControl
from nereid_scheduler.control.sources.model_traffic import ModelTraffic
from nereid_scheduler.control.state.model_records import NO_MODEL_RECORDS
from nereid_scheduler.control.state.setting_records import SIZES
from nereid_scheduler.core.memory.budgets import budgets_of
from nereid_scheduler.core.models.desired_models import DesiredModels
from nereid_scheduler.core.models.model_owners import ONE_OWNER
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.placement.loads.loader import Loader
from nereid_scheduler.placement.models.catalogue import Catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.wire.messages import Notice
    from nereid.pb import nereid_pb2 as pb
    from nereid_scheduler.core.models.model_owners import ModelOwners
    from nereid_scheduler.environment import Environment
    from nereid_scheduler.placement.models.catalogue import ServedVersion
    from nereid_scheduler.settings import Settings
    from nereid_scheduler.versions.model_version import ModelVersion


@dataclass(frozen=True)
class ModelParts:
    """Parts that manage one scheduler's models. Only one of several has a shard, and moves."""

    repositories: Repositories
    desired: DesiredModels
    catalogue: Catalogue
    loader: Loader
    load_queue: LoadQueue
    owners: ModelOwners
    moves: ModelMoves | None
    shard: Shard | None
    on_demand: OnDemandLoads
    reconciler: Reconciler
    control: ModelControl
    traffic: ModelTraffic
    rollouts: Rollouts


def open_models(  # noqa: PLR0913 (one by keyword)
    environment: Environment,
    on_change: Callable[[str], None],
    first_commands: Callable[[], Iterable[pb.ExecutorCommand]],
    send_notice: Callable[[Notice], None],
    count_links: Callable[[], int],
    *,
    on_handed_over: Callable[[ServedVersion, ModelVersion], None],
) -> ModelParts:
    """Create the parts and connect them."""
    settings, state = environment.settings, environment.state
    records = state.models if settings.model_control_mode == EXPLICIT else None

    def on_due() -> None:
        asyncio.get_running_loop().call_soon(reconciler.reconcile)

    def on_executors() -> None:
        on_demand.on_executors()

    def on_regrouped() -> None:
        if shard is not None:
            shard.regroup()

    desired = DesiredModels(settings.load_model, on_due)
    catalogue = Catalogue(desired=desired)
    membership = _membership(settings)
    residency = Residency(budgets_of(settings.model_memory_budget), desired.pending_loads)
    loader = Loader(
        environment.load_rules(membership, residency.memory.free),
        on_change,
        catalogue,
        first_commands,
        on_executors,
        on_handed_over=on_handed_over,
        times=settings.recovery,
    )
    load_queue = LoadQueue(settings.no_executor_limit_s, settings.max_queue_size)
    repositories = _open_repositories(settings)
    traffic = ModelTraffic(
        catalogue, loader.ensembles, state.settings, on_change, loader.record_event
    )
    moves: ModelMoves | None = None
    shard: Shard | None = None
    if membership is not None:
        owned = OwnedModels(membership.name)
        moves = ModelMoves(
            owned,
            membership,
            repositories,
            catalogue,
            settings.model_control_mode,
            loader,
            desired,
            on_regrouped,
            settings.recovery,
            NO_MODEL_RECORDS if records is None else records,
        )
        shard = Shard(
            membership,
            owned,
            moves,
            traffic,
            parse_addresses(settings.scheduler_peers or ""),
            environment.ports.open_peer,
            send_notice,
            count_links=count_links,
            times=settings.recovery,
        )
    on_demand = OnDemandLoads(
        desired,
        catalogue,
        loader,
        residency,
        Popularity(settings.model_popularity_half_life),
        enabled=settings.lazy_loading,
        timeout_s=settings.no_executor_limit_s,
        held_models=lambda: (held.name for held in load_queue),
        record_sizes=partial(state.settings.record, SIZES),
        timeline=environment.timeline,
    )
    rules = _control_rules(settings)
    recorded: RecordedModels = NO_RECORDED_MODELS
    if records is not None:
        recorded = RecordedModels(repositories, records, files_allowed=rules.allow_model_files)
    owners: ModelOwners = ONE_OWNER if moves is None else moves
    sources = Sources(on_demand, recorded, owners)
    reconciler = Reconciler(desired, catalogue, loader, repositories, rules, sources)
    control = ModelControl(repositories, catalogue, desired, reconciler, rules, sources)
    return ModelParts(
        repositories,
        desired,
        catalogue,
        loader,
        load_queue,
        owners,
        moves,
        shard,
        on_demand,
        reconciler,
        control,
        traffic,
        Rollouts(traffic, catalogue, owners.owns, loader.record_event, shadow_difference(traffic)),
    )


def _membership(settings: Settings) -> Membership | None:
    if settings.scheduler_peers is None:
        return None
    incarnation = int.from_bytes(os.urandom(8), "little") or 1
    return Membership(settings.shard_name(), incarnation)


def _open_repositories(settings: Settings) -> Repositories:
    paths = settings.model_repository
    config_files = ConfigFiles(
        settings.model_config_name, settings.model_config_profile, settings.config_variables()
    )
    stored = open_stored_repositories(paths, store_environ(), config_files)
    return Repositories(paths, config_files, settings.model_namespacing, stored)


def _control_rules(settings: Settings) -> ModelControlRules:
    return ModelControlRules(
        settings.model_control_mode,
        settings.load_model,
        settings.repository_poll_secs,
        settings.model_load_retry_count,
        settings.no_executor_limit_s,
        allow_model_files=settings.allow_model_files,
        hand_over_limit_s=settings.exit_timeout_secs,
    )
