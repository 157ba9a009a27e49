"""Loads each version on each executor, once the version's configuration is complete."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.core.known_backends import PYTHON_FILE
from nereid.core.terminal import escape_controls
from nereid.model_config import with_instance_groups
from nereid_scheduler.core.instances.instance_places import (
    device_of,
    gpu_ids,
    place,
    require_agents,
    require_backend,
)
from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.core.models.lifecycle import LoadStatus, reason_of
from nereid_scheduler.core.models.revision import digest_files, revision_of
from nereid_scheduler.placement.executors.describe_commands import DescribeCommands
from nereid_scheduler.placement.executors.sessions import HostedVersion
from nereid_scheduler.placement.loads.load_rules import full_config_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nereid.model_config import ModelConfig
    from nereid.pb import nereid_pb2 as pb
    from nereid_scheduler.core.instances.instance_places import Slot
    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.loads.instance_table import InstanceTable
    from nereid_scheduler.placement.loads.load_rules import LoadRules
    from nereid_scheduler.placement.loads.version_lives import VersionLives
    from nereid_scheduler.placement.models.catalogue import ServedVersion
    from nereid_scheduler.versions.waits.nested_calls import NestedCalls

_MAX_PROGRESS: Final = 200


class VersionLoads:
    """Loads of versions on the executors that have joined."""

    def __init__(  # noqa: PLR0913, PLR0917 (one owner of what a load changes each)
        self,
        rules: LoadRules,
        lives: VersionLives,
        instances: InstanceTable,
        sessions: Mapping[str, Session],
        numbers: Iterator[int],
        nested_calls: NestedCalls,
    ) -> None:
        self._rules = rules
        self._lives = lives
        self._instances = instances
        self._sessions = sessions
        self._nested_calls = nested_calls
        self.descriptions = DescribeCommands(numbers)
        self._revision_tasks: set[asyncio.Task[None]] = set()

    def model_described(self, session: Session, message: pb.Described) -> None:
        """Handle an executor's report that it has read a model file, or has failed to read it."""
        served = self.descriptions.end(session, message.command)
        if served is None:
            return
        if message.HasField("error"):
            reason = reason_of(message.error.code, message.error.message)
            self._lives.report(served, session, LoadStatus.FAILED, reason)
        else:
            self.create_runtime(served, message)
        self.load_on_all(served)

    def load_progressed(self, session: Session, progress: pb.LoadProgress) -> None:
        """Show what an executor does before it can describe or load a version."""
        served = self.descriptions.version_of(session, progress.command)
        placed = self._instances.placed.get(progress.instance)
        if placed is not None and placed.session is session:
            hosted = session.hosted[placed.served]
            served = None if hosted.was_ever_ready else placed.served
        if served is not None:
            text = escape_controls(progress.text[:_MAX_PROGRESS])
            self._lives.report(served, session, LoadStatus.LOADING, text)

    def load_on_all(self, served: ServedVersion) -> None:
        """Load a version on every executor that has joined."""
        for session in list(self._sessions.values()):
            self.load_on(served, session)

    def load_on(self, served: ServedVersion, session: Session) -> None:
        """Have an executor load its instances of a version, unless it does so or has failed."""
        life = served.life
        if life.refused or served in session.hosted or life.failed_on(session):
            return
        if is_ensemble(served.draft):
            return
        if served.hosts is not None and session.name not in served.hosts:
            return
        if served.runtime is not None:
            self._place_instances(served, session)
        elif not self.descriptions.is_pending(served):
            self._request_description(served, session)

    def _request_description(self, served: ServedVersion, session: Session) -> None:
        try:
            require_backend(served.draft.backend, session.hello)
            require_agents(served.draft, session.hello)
        except NereidError as error:
            self._lives.report_error(served, session, error)
            return
        command = self.descriptions.begin(served, session)
        self._lives.report(served, session, LoadStatus.LOADING)
        session.send(command)

    def create_runtime(self, served: ServedVersion, described: pb.Described | None) -> None:
        """Complete the configuration and create the version's queue for requests."""
        try:
            served.runtime = self._rules.create_runtime(
                served, described, self._lives.ensembles, self._nested_calls
            )
        except NereidError as error:
            self._lives.refuse(served, error)

    def _place_instances(self, served: ServedVersion, session: Session) -> None:
        try:
            slots = self.slots(full_config_of(served), session)
        except NereidError as error:
            self._lives.report_error(served, session, error)
            return
        self.set_shown_config(served, session)
        hosted = session.hosted[served] = HostedVersion()
        self._lives.report(served, session, LoadStatus.LOADING)
        if self._rules.cache is None:
            self._instances.load_instances(served, session, slots)
        else:
            task = asyncio.ensure_future(self._load_with_revision(served, session, hosted, slots))
            self._revision_tasks.add(task)
            task.add_done_callback(self._revision_tasks.discard)

    def slots(self, config: ModelConfig, session: Session) -> list[Slot]:
        """Return the slots that an executor must fill; raise NereidError if it cannot."""
        slots = place(config, session.hello)
        if self._rules.rate_limiter is not None:
            resources = self._rules.rate_limiter.resources
            for slot in slots:
                resources.require(slot.rate_limit.resources, device_of(slot, session.hello))
        return slots

    async def _load_with_revision(
        self, served: ServedVersion, session: Session, hosted: HostedVersion, slots: list[Slot]
    ) -> None:
        """Load the instances with a new digest of the files, since the scan may be old.

        If files change after the digest, responses have a revision that is never looked up.
        """
        # Executors load exactly the files that the object store listed, so that digest still holds.
        stored = served.stored_digest
        digest = stored or await asyncio.to_thread(digest_files, served.path)
        runtime = served.runtime
        ended = session.leaving or session.gone
        if session.hosted.get(served) is hosted and not ended and runtime is not None:
            # Models of the same name in two namespaces must not share responses.
            revision = revision_of(runtime.config.proto, digest + served.namespace.encode())
            runtime.set_revision(revision)
            self._instances.load_instances(served, session, slots, revision)

    def set_shown_config(self, served: ServedVersion, session: Session) -> None:
        """Set the configuration that clients see: groups and runtime are the first executor's."""
        if served.shown is None:
            proto = full_config_of(served).proto
            shown = with_instance_groups(proto, gpu_ids=gpu_ids(session.hello))
            if not shown.runtime and shown.backend in session.hello.python_based:
                shown.runtime = PYTHON_FILE
            served.shown = shown
