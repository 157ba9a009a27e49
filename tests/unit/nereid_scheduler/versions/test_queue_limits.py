"""Which models have adaptive admission."""

import pytest

from nereid_scheduler.batching.policies.queue_control import AdmissionTarget
from nereid_scheduler.versions.queue_limits import QueueLimits
from tests.support.scheduler.samples import model_of

_OWN = 'parameters {{ key: "admission_target_ms" value {{ string_value: "{}" }} }}'
_ON, _OFF = QueueLimits(admission_target_ms=20, admission_interval_ms=50), QueueLimits()


@pytest.mark.parametrize(
    ("limits", "parameter", "target_ms"),
    [(_ON, "", 20), (_ON, "7", 7), (_ON, "0", None), (_OFF, "", None), (_OFF, "7", 7)],
    ids=["on", "own", "not-this", "off", "this"],
)
def test_a_model_may_say_otherwise(
    limits: QueueLimits, parameter: str, target_ms: int | None
) -> None:
    text = _OWN.format(parameter) if parameter else ""
    target = limits.admission_of(model_of(text))
    if target_ms is None:
        assert target is None
    else:
        interval_ms = limits.admission_interval_ms
        assert target == AdmissionTarget(target_ms * 1_000_000, interval_ms * 1_000_000)
