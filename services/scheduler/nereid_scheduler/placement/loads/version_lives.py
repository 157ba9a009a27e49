"""Lives of all versions in service: applies events of executors to versions' states."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from nereid.core.errors import Unavailable
from nereid.model_config.batching_fields import SHADOW, TRAFFIC
from nereid.model_config.remedies import with_remedy
from nereid_scheduler.core.models.desired_models import NO_CAUSE
from nereid_scheduler.core.models.lifecycle import LoadStatus, VersionState, reason_of
from nereid_scheduler.placement.loads.load_waiters import LoadWaiters
from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.timeline.recorder import RecordEvent
    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion

_log = logging.getLogger(__name__)


class VersionLives:
    """The lives of all versions, and what follows from a change of state."""

    def __init__(
        self,
        catalogue: Catalogue,
        on_change: Callable[[str], None],
        is_updating: Callable[[ServedVersion], bool],
        record_event: RecordEvent,
    ) -> None:
        self._catalogue = catalogue
        self._on_change = on_change
        self._is_updating = is_updating
        self._record_event = record_event
        # Includes versions that still finish accepted requests.
        self.versions: dict[ServedVersion, None] = {}
        self.ensembles = Ensembles(catalogue, self.apply_event)
        self.waiters = LoadWaiters(self._is_load_finished)
        self.stopped = False
        self._loading_since_ns: dict[ServedVersion, int] = {}

    def add(self, served: ServedVersion) -> None:
        """Begin a version's load."""
        self.versions[served] = None
        if {TRAFFIC, SHADOW}.intersection(served.draft.parameters):
            self._catalogue.configured_traffic.add(served.name)
        self.apply_event(served, served.life.await_executor)

    def remove(self, served: ServedVersion) -> None:
        """Remove a version that should not be loaded any more."""
        self.versions.pop(served, None)
        self.ensembles.remove_ensemble(served)

    def stop(self) -> None:
        """Let no event change a state from now on, since the scheduler ends."""
        self.stopped = True

    def report(
        self, served: ServedVersion, session: Session, standing: LoadStatus, reason: str = ""
    ) -> None:
        """Record the progress of an executor that loads a version. reason: why it has failed."""
        self.apply_event(served, partial(served.life.report, session, standing, reason))

    def report_error(self, served: ServedVersion, session: Session, error: NereidError) -> None:
        """Record that an executor cannot load a version."""
        self.report(served, session, LoadStatus.FAILED, reason_of(error.code, error.message))

    def forget_reports_of(self, session: Session) -> None:
        """Forget what an executor that has left reported about its loads."""
        for served in list(self.versions):
            self.apply_event(served, partial(served.life.forget_executor, session))

    def refuse(self, served: ServedVersion, error: NereidError) -> None:
        """Record that no executor can load a version."""
        reason = reason_of(error.code, error.message)
        self.apply_event(served, partial(served.life.refuse, reason))

    def apply_event(self, served: ServedVersion, event: Callable[[], None]) -> None:
        """Apply an event to a version's life, and act on the change of its state."""
        if self.stopped:
            return
        life = served.life
        before = (life.state, life.reason)
        event()
        served.record_load_times(time.monotonic())
        served.first_load_ended |= life.load_finished
        self.waiters.notify_all()
        if (life.state, life.reason) == before:
            return
        state = f"{life.state.value}: {life.reason}" if life.reason else life.state.value
        if life.state is not before[0]:
            self._record_change(served)
        if life.failed:
            _log.error("model %s is %s", served, with_remedy(state))
        else:
            _log.info("model %s is %s", served, state)
        if life.failed and served.runtime is not None:
            served.runtime.fail_all(
                Unavailable(f"model {served} failed: {life.reason}", accepted=True)
            )
        self.ensembles.on_model_changed(served.name)
        self._on_change(served.plain_name)

    def _record_change(self, served: ServedVersion) -> None:
        life = served.life
        if life.state is VersionState.LOADING:
            self._loading_since_ns.setdefault(served, time.monotonic_ns())
            return
        since_ns = self._loading_since_ns.pop(served, 0)
        if life.failed:
            what, detail, since_ns = "load failed", life.reason, 0
        elif life.state is VersionState.READY:
            what, detail = "load", ""
        elif life.state is VersionState.UNAVAILABLE:
            what, detail, since_ns = "unload", life.reason, 0
        else:
            return
        cause, served.cause = served.cause, NO_CAUSE
        self._record_event(
            what,
            str(served),
            detail,
            from_ns=since_ns,
            model=served.plain_name,
            cause=cause.text,
            principal=cause.principal,
        )

    def _is_load_finished(self, served: ServedVersion) -> bool:
        return served.life.load_finished and not self._is_updating(served)
