"""Lives of all versions in service: applies events of executors to versions' states."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from nereid.core.errors import Unavailable
from nereid.model_config.remedies import with_remedy
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
        on_change: Callable[[], None],
        is_updating: Callable[[ServedVersion], bool],
        record_event: RecordEvent,
    ) -> None:
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
        self.apply_event(served, served.life.await_executor)

    def remove(self, served: ServedVersion) -> None:
        """Remove a version that should not be loaded any more."""
        self.versions.pop(served, None)
        self.ensembles.remove_ensemble(served)

    def stop(self) -> None:
        """Let no event change a state from now on, since the scheduler ends."""
        self.stopped = True

    def report(self, served: ServedVersion, session: Session, standing: LoadStatus) -> None:
        """Record the progress of an executor that loads a version."""
        self.apply_event(served, partial(served.life.report, session, standing))

    def report_failure(self, served: ServedVersion, session: Session, reason: str) -> None:
        """Record that an executor cannot load a version."""
        failed = partial(served.life.report, session, LoadStatus.FAILED, reason)
        self.apply_event(served, failed)

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
        self._on_change()

    def _record_change(self, served: ServedVersion) -> None:
        life = served.life
        if life.failed:
            self._record_event("load failed", str(served), life.reason)
        elif life.state is VersionState.LOADING:
            self._loading_since_ns.setdefault(served, time.monotonic_ns())
            return
        elif life.state is VersionState.READY:
            since_ns = self._loading_since_ns.get(served, 0)
            self._record_event("load", str(served), from_ns=since_ns)
        elif life.state is VersionState.UNAVAILABLE:
            self._record_event("unload", str(served), life.reason)
        self._loading_since_ns.pop(served, None)

    def _is_load_finished(self, served: ServedVersion) -> bool:
        return served.life.load_finished and not self._is_updating(served)
