"""Decides which instances of a model an executor must load, by the model's instance groups."""

# layout: not compiled, off the hot path

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.model_config import UNLIMITED, normalise_instance_groups
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.resources import Device

if TYPE_CHECKING:
    from nereid.model_config import InstanceGroup, ModelConfig, RateLimit
    from nereid.pb import model_config_pb2 as config_pb


@dataclass(frozen=True, slots=True)
class Slot:
    """Instance to load: its name, its device, and when it may execute."""

    name: str
    kind: pb.Device.Kind
    device_id: int
    rate_limit: RateLimit = UNLIMITED
    # A passive instance is loaded, but gets no requests.
    passive: bool = False


def require_backend(backend: str, hello: pb.Hello) -> None:
    """Raise InvalidArgument, in Triton's words, if the executor lacks this backend."""
    if backend not in hello.backends:
        raise InvalidArgument(
            f"unable to find backend library for backend '{backend}', try specifying runtime on"
            " the model configuration."
        )


def require_agents(config: config_pb.ModelConfig, hello: pb.Hello) -> None:
    """Raise InvalidArgument if the executor lacks a repository agent, which may check the files."""
    for agent in config.model_repository_agents.agents:
        if agent.name not in hello.repository_agents:
            raise InvalidArgument(
                f"unable to find repository agent '{agent.name}' on executor '{hello.name}'"
            )


def gpu_ids(hello: pb.Hello) -> list[int]:
    """Return the ids of the GPUs that an executor can use."""
    return [device.id for device in hello.devices if device.kind == pb.Device.GPU]


def uuid_of(slot: Slot, hello: pb.Hello) -> str:
    """Return the UUID of an instance's GPU, or an empty string for an instance on the CPU."""
    if slot.kind != pb.Device.GPU:
        return ""
    gpus = (device for device in hello.devices if device.kind == pb.Device.GPU)
    return next((gpu.uuid for gpu in gpus if gpu.id == slot.device_id), "")


def device_of(slot: Slot, hello: pb.Hello) -> Device:
    """Return an instance's device, which executors on the same host share."""
    return Device(hello.host, slot.device_id)


def place(config: ModelConfig, hello: pb.Hello) -> list[Slot]:
    """Return the instances that an executor must load; raise NereidError if it cannot."""
    require_backend(config.backend, hello)
    require_agents(config.proto, hello)
    groups = normalise_instance_groups(config.proto, gpu_ids=gpu_ids(hello))
    return [slot for group in groups for slot in _slots(group)]


def _slots(group: InstanceGroup) -> list[Slot]:
    if group.kind == "GPU":
        devices = [(pb.Device.GPU, gpu) for gpu in group.gpus for _ in range(group.count)]
    else:
        # With KIND_MODEL the backend chooses the devices; the instance counts as one on the CPU.
        devices = [(pb.Device.CPU, 0)] * group.count
    return [
        Slot(f"{group.name}_{index}", kind, device_id, group.rate_limit, group.passive)
        for index, (kind, device_id) in enumerate(devices)
    ]
