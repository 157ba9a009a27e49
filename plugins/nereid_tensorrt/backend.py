"""The TensorRT backend: engines (model.plan) on GPUs. It has not been tried on a GPU yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.backends import BackendCapabilities, InstanceSpec, ModelDescription
from nereid.backends.device_io.cuda_device import open_gpu
from nereid.backends.model_file import find_model_file
from nereid.backends.parameters import parameters_of, parse_boolean
from nereid.backends.shared_models import SharedModels
from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.model_config import check_model_file
from nereid_tensorrt.engine import Engine
from nereid_tensorrt.engine_session import make_model
from nereid_tensorrt.optimization_profiles import (
    complete_from_engine,
    instance_profiles,
    largest_batch,
)

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.backends.device_io.device_model import DeviceModel
    from nereid.pb import model_config_pb2

DEFAULT_FILENAME: Final = "model.plan"
_MULTI_DEVICE: Final = "enable_multi_device"

_engines: SharedModels[Engine] = SharedModels()


def loads_native_code(_config: model_config_pb2.ModelConfig) -> bool:
    """Return True: engines are code, and bring plugins along."""
    return True


capabilities: Final = BackendCapabilities(loads_native_code=loads_native_code)


def uses_gpus() -> bool:
    """Return True: TensorRT runs on GPUs only."""
    return True


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Complete the configuration from the engine, which loads only on its own kind of GPU."""
    capability = open_gpu(0, config).compute_capability()
    path = find_model_file(config, version_path, DEFAULT_FILENAME, capability)
    engine = Engine(config, path, {})
    rows = largest_batch({0: engine.profile(0)})
    return ModelDescription((), (), complete_from_engine(config, engine.description, rows))


def load(spec: InstanceSpec) -> DeviceModel:
    """Return a model with new contexts and graphs, on an engine that instances on the GPU share."""
    config = spec.config
    if parse_boolean(config, parameters_of(config), _MULTI_DEVICE, default=False):
        raise Unimplemented(
            f"unable to load model '{config.name}', engines for several GPUs (parameter"
            f" '{_MULTI_DEVICE}') are not offered"
        )
    if spec.gpu is None:
        raise InvalidArgument(
            f"unable to load model '{config.name}', TensorRT models run on GPUs only"
        )
    device = open_gpu(spec.gpu, config)
    path = find_model_file(config, spec.version_path, DEFAULT_FILENAME, device.compute_capability())
    engine = _engines.get_or_load(path, str(spec.gpu), lambda: Engine(config, path, spec.settings))
    check_model_file(config, engine.description)
    numbers = instance_profiles(config, spec.name, engine.profile_count)
    profiles = {number: engine.profile(number) for number in numbers}
    max_rows = largest_batch(profiles)
    if config.max_batch_size > max_rows:
        raise InvalidArgument(
            f"unexpected configuration maximum batch size {config.max_batch_size} for "
            f"'{spec.name}', model maximum is {max_rows}"
        )
    return make_model(config, engine, profiles, device)
