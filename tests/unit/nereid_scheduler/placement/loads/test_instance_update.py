"""Which instances an update of the instance groups keeps, loads and unloads."""

from __future__ import annotations

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_places import Slot
from nereid_scheduler.placement.loads.instance_update import match_slots

CPU, GPU = pb.Device.CPU, pb.Device.GPU
A, B, OTHER = Slot("a_0", CPU, 0), Slot("b_0", CPU, 0), Slot("a_0", GPU, 0)


@pytest.mark.parametrize(
    ("wanted", "current", "missing", "surplus"),
    [
        ([A, B], {}, [A, B], set()),
        ([A], {1: A, 2: B}, [], {2}),
        ([A, B], {1: A}, [B], set()),
        # The one of the same name is kept, whatever comes first.
        ([A], {1: B, 2: A}, [], {1}),
        # As on Triton, an instance is kept though its group has another name.
        ([B], {1: A}, [], set()),
        ([OTHER], {1: A}, [OTHER], {1}),
        ([], {1: A}, [], {1}),
    ],
)
def test_slots_and_instances_are_matched(
    wanted: list[Slot], current: dict[int, Slot], missing: list[Slot], surplus: set[int]
) -> None:
    assert match_slots(wanted, current) == (missing, surplus)
