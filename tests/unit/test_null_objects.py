"""Objects that do nothing: they do so in place of each public method of their class."""

from __future__ import annotations

import pytest

from nereid.rpc.net.limits.budget import NoAccount
from nereid.timeline.collection import NO_FRAMES
from nereid_gateway.plane.timeline import NoTimeline as NoGatewayTimeline
from nereid_scheduler.control.repository.recorded_models import NoRecordedModels
from nereid_scheduler.control.state.model_records import NoModelRecords
from nereid_scheduler.core.measurements.timeline import NoTimeline as NoSchedulerTimeline
from nereid_scheduler.core.models.model_owners import OneOwner
from nereid_scheduler.versions.reruns.first_runs import NoFirstRuns
from nereid_scheduler.versions.state_transfers import NoTransfers
from nereid_scheduler.versions.waiting_batches import NoWaitingBatches

# Methods that nobody calls where the class does nothing.
NEVER_CALLED = {
    NoAccount: set[str](),
    type(NO_FRAMES): set[str](),
    # The endpoint responds that nothing is recorded.
    NoGatewayTimeline: {"gather"},
    # There is no record that it could find.
    NoRecordedModels: {"find"},
    OneOwner: set[str](),
    # The state has no documents.
    NoModelRecords: {"parse", "read_override"},
    # Records of versions ask whether there is a timeline.
    NoSchedulerTimeline: {"record_batch", "record_ended"},
    # Calls of the loader, which has a real one; and of a request that waits, which none does.
    NoFirstRuns: {
        "begin_takeover",
        "executor_joined",
        "executor_left",
        "executor_reported",
        "forget",
        "on_recalled",
        "restart_grace",
    },
    # Calls for an instance that hands its states over, which none does.
    NoTransfers: {"end_export", "export"},
    NoWaitingBatches: set[str](),
}


@pytest.mark.parametrize(
    "nothing", NEVER_CALLED, ids=lambda cls: f"{cls.__module__}.{cls.__name__}"
)
def test_every_method_does_nothing(nothing: type) -> None:
    [real] = nothing.__bases__
    methods = {
        name for name, value in vars(real).items() if callable(value) and not name.startswith("_")
    }
    assert methods - vars(nothing).keys() == NEVER_CALLED[nothing]
