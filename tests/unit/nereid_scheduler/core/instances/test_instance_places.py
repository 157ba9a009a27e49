"""The instances that a configuration makes of an executor's devices."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import ModelConfig, RateLimit, ResourceNeed
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_places import (
    Slot,
    device_of,
    gpu_ids,
    place,
    uuid_of,
)
from nereid_scheduler.core.resources import Device
from tests.support.scheduler.samples import model_of

CPU, GPU = pb.Device.CPU, pb.Device.GPU
TENSORS = """
input { name: "I" data_type: TYPE_FP32 dims: 1 }
output { name: "O" data_type: TYPE_FP32 dims: 1 }
"""


def hello(*gpus: int, backends: tuple[str, ...] = ("onnxruntime",)) -> pb.Hello:
    said = pb.Hello(name="one", backends=backends)
    said.devices.add(kind=CPU)
    for number in gpus:
        said.devices.add(kind=GPU, id=number)
    return said


def model(text: str = "") -> ModelConfig:
    return model_of(f"{TENSORS} {text}", backend="onnxruntime")


def test_two_instances_on_a_cpu_by_default() -> None:
    slots = place(model(), hello())
    assert [(slot.kind, slot.device_id) for slot in slots] == [(CPU, 0), (CPU, 0)]
    assert len({slot.name for slot in slots}) == 2


def test_one_instance_on_each_gpu_by_default() -> None:
    slots = place(model(), hello(0, 1))
    assert [(slot.kind, slot.device_id) for slot in slots] == [(GPU, 0), (GPU, 1)]
    assert gpu_ids(hello(0, 1)) == [0, 1]


def test_an_instance_knows_its_gpu() -> None:
    said = hello(0, 1)
    said.devices[2].uuid = "GPU-1"
    slots = [Slot("a", CPU, 1), Slot("b", GPU, 0), Slot("c", GPU, 1), Slot("d", GPU, 7)]
    assert [uuid_of(slot, said) for slot in slots] == ["", "", "GPU-1", ""]


def test_counts_hold_for_each_gpu_and_names_are_the_groups() -> None:
    group = 'instance_group [ { name: "fast" count: 2 kind: KIND_GPU gpus: [ 1, 3 ] } ]'
    assert place(model(group), hello(0, 1, 3)) == [
        Slot("fast_0", GPU, 1),
        Slot("fast_1", GPU, 1),
        Slot("fast_2", GPU, 3),
        Slot("fast_3", GPU, 3),
    ]


def test_the_backend_chooses_the_devices_of_kind_model() -> None:
    slots = place(model("instance_group [ { count: 1 kind: KIND_MODEL } ]"), hello(0))
    assert [(slot.kind, slot.device_id) for slot in slots] == [(CPU, 0)]


def test_several_groups_add_up_and_instances_of_passive_ones_are_passive() -> None:
    groups = (
        "instance_group [ { count: 1 kind: KIND_CPU }, { count: 3 kind: KIND_CPU passive: true },"
        " { count: 2 kind: KIND_CPU } ]"
    )
    passive = [slot.passive for slot in place(model(groups), hello())]
    assert passive == [False, True, True, True, False, False]


def test_a_rate_limiter_is_one_of_each_instance() -> None:
    group = """instance_group [ { count: 2 kind: KIND_CPU rate_limiter {
        resources [ { name: "R" count: 3 }, { name: "G" global: true count: 1 } ]
        priority: 2 } } ]"""
    limit = RateLimit((ResourceNeed("R", False, 3), ResourceNeed("G", True, 1)), 2)
    said = hello()
    said.host = "h"
    slots = place(model(group), said)
    assert [slot.rate_limit for slot in slots] == [limit, limit]
    assert device_of(slots[0], said) == Device("h", 0)
    assert place(model(), said)[0].rate_limit == RateLimit((), 1)


@pytest.mark.parametrize(
    ("text", "said", "reason"),
    [
        ("", hello(backends=("python",)), "unable to find backend library for backend 'onnxr"),
        ("instance_group [ { kind: KIND_GPU } ]", hello(), "no GPUs are available"),
        ("instance_group [ { kind: KIND_GPU gpus: 7 } ]", hello(0), "unsupported gpu id 7"),
    ],
)
def test_an_executor_that_cannot_host_a_model_is_refused(
    text: str, said: pb.Hello, reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        place(model(text), said)


def test_an_executor_needs_the_models_repository_agents() -> None:
    asking = model('model_repository_agents { agents { name: "a" } agents { name: "b" } }')
    said = hello()
    said.repository_agents.append("a")
    with pytest.raises(InvalidArgument, match="unable to find repository agent 'b' on executor"):
        place(asking, said)
    said.repository_agents.append("b")
    assert len(place(asking, said)) == 2
