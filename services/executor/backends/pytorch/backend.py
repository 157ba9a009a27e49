"""The PyTorch backend: TorchScript files (model.pt), on the CPU or a GPU.

Such a file tells its arguments' names and nothing of their shapes, so that the configuration has to
say everything; pytorch_names.py has the rules for names. Lists of strings are BYTES.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec, ModelDescription
from nereid.core.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.errors import Internal, InvalidArgument, Unavailable, Unimplemented
from nereid.pb import model_config_pb2
from nereid.services.executor.backends.model_file import model_file
from nereid.services.executor.backends.parameters import number, parameters_of, truth
from nereid.services.executor.backends.pytorch.tensor_names import arguments_of, results_of
from nereid.services.executor.backends.shared_models import SharedByFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from nereid.core.tensors import Array

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

DEFAULT_FILENAME: Final = "model.pt"

# What TorchScript raises is RuntimeError nearly always.
_ERRORS: Final = (RuntimeError, ValueError, TypeError, IndexError, KeyError)
# Parameters that switch off a part of TorchScript's optimiser, for the whole process.
_SWITCHES: Final = {
    "ENABLE_JIT_EXECUTOR": "_jit_set_profiling_executor",
    "ENABLE_JIT_PROFILING": "_jit_set_profiling_mode",
    "ENABLE_TENSOR_FUSER": "_jit_set_texpr_fuser_enabled",
}
_KIND_MODEL: Final = model_config_pb2.ModelInstanceGroup.KIND_MODEL

_shared: SharedByFile[Any] = SharedByFile()


def uses_gpus() -> bool:
    """Whether the installed torch has CUDA, and finds a GPU."""
    return bool(torch.cuda.is_available())


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Nothing, if the file is there: TorchScript knows neither shapes nor datatypes."""
    model_file(config, version_path, DEFAULT_FILENAME)
    return EMPTY_DESCRIPTION


def load(spec: InstanceSpec) -> TorchModel:
    """A module on the instance's device, and the settings of its thread."""
    config = spec.config
    parameters = parameters_of(config)
    if config.runtime == "model.py":
        raise Unimplemented(
            f"unable to load model '{config.name}', PyTorch models as Python source (runtime "
            "'model.py') are not offered; use the backend 'python'"
        )
    device = _device(spec)
    _set_up_thread(config, parameters, device)
    capability = ""
    if device is not None and device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    path = model_file(config, spec.version_path, DEFAULT_FILENAME, capability)
    share = truth(config, parameters, "ENABLE_WEIGHT_SHARING", default=False)
    try:
        module = (
            _shared.get(path, str(device), lambda: _module(path, device))
            if share
            else _module(path, device)
        )
        arguments = module.forward.schema.arguments[1:]
    except _ERRORS as error:
        raise Internal(f"failed to load '{config.name}': {error}") from error
    return TorchModel(config, module, arguments, device)


def _device(spec: InstanceSpec) -> torch.device | None:
    """None: where the file has put each part, which is what KIND_MODEL means."""
    if spec.gpu is None:
        kinds = {group.kind for group in spec.config.instance_group}
        return None if kinds == {_KIND_MODEL} else torch.device("cpu")
    if not uses_gpus():
        raise Unavailable(
            f"unable to load model '{spec.config.name}', the executor's torch has no CUDA"
        )
    return torch.device("cuda", spec.gpu)


def _set_up_thread(
    config: model_config_pb2.ModelConfig,
    parameters: Mapping[str, str],
    device: torch.device | None,
) -> None:
    """What holds for this thread, which is the instance's; and switches that hold for all."""
    for name, switch in _SWITCHES.items():
        if name in parameters:
            getattr(torch._C, switch)(truth(config, parameters, name, default=True))  # noqa: SLF001 - TorchScript's switches have no public name
    optimised = not truth(config, parameters, "DISABLE_OPTIMIZED_EXECUTION", default=False)
    torch._C._set_graph_executor_optimize(optimised)  # noqa: SLF001 - likewise
    threads = number(config, parameters, "INTRA_OP_THREAD_COUNT")
    if threads:
        torch.set_num_threads(threads)
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))


def _module(path: Path, device: torch.device | None) -> Any:
    module = torch.jit.load(str(path), map_location=device)
    module.eval()
    return module


class TorchModel:
    """A module and how to call it; used by its instance's thread alone."""

    description = EMPTY_DESCRIPTION
    bytes_as_text = True

    def __init__(
        self,
        config: model_config_pb2.ModelConfig,
        module: Any,
        arguments: Sequence[Any],
        device: torch.device | None,
    ) -> None:
        self._module = module
        self._device = device
        self._batching = config.max_batch_size > 0
        parameters = parameters_of(config)
        inference = truth(config, parameters, "INFERENCE_MODE", default=True)
        self._mode = torch.inference_mode if inference else torch.no_grad
        self._cleans = truth(config, parameters, "ENABLE_CACHE_CLEANING", default=False)
        # Set: the module takes one dictionary, by the inputs' names.
        self._dictionary = ""
        self._arguments: dict[str, str] = {}
        names = [tensor.name for tensor in config.input]
        if len(arguments) == 1 and arguments[0].type.kind() == "DictType":
            self._dictionary = arguments[0].name
        else:
            self._arguments = arguments_of(config.name, names, [each.name for each in arguments])
            _check_complete(config, arguments, self._arguments.values())
        self._results = results_of(config.name, [tensor.name for tensor in config.output])
        tensors: list[_Tensor] = [*config.input, *config.output]
        self._datatypes = {
            tensor.name: NAME_OF_CONFIG_NUMBER[tensor.data_type] for tensor in tensors
        }
        _check_strings(config)

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        try:
            with self._mode():
                given = {name: self._given(name, array) for name, array in inputs.items()}
                if self._dictionary:
                    made = self._module(**{self._dictionary: given})
                else:
                    arguments = self._arguments
                    made = self._module(**{arguments[name]: each for name, each in given.items()})
                return [self._array(name, made) for name in outputs]
        except _ERRORS as error:
            raise Internal(f"PyTorch execute failure: {error}") from error
        finally:
            if self._cleans and self._device is not None and self._device.type == "cuda":
                torch.cuda.empty_cache()

    def close(self) -> None:
        del self._module

    def _given(self, name: str, array: Array) -> Any:
        datatype = self._datatypes[name]
        if datatype == BYTES:
            return array.ravel().tolist()
        # A module may write to what it gets, and this array belongs to others.
        tensor = torch.from_numpy(array.copy())
        if datatype == "BF16":
            tensor = tensor.view(torch.bfloat16)
        return tensor if self._device is None else tensor.to(self._device)

    def _array(self, name: str, made: Any) -> Array:
        """The output of this name, among all that the module has made."""
        result = made[name] if isinstance(made, dict) else self._result(name, made)
        if isinstance(result, list):
            strings = np.array(result, np.object_)
            return strings.reshape(-1, 1) if self._batching else strings
        tensor = result.cpu()
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.contiguous().view(torch.uint16)
        array: Array = tensor.numpy(force=True)
        return array

    def _result(self, name: str, made: Any) -> Any:
        # A list of strings is one result, any other several.
        is_one = isinstance(made, torch.Tensor) or (
            isinstance(made, list) and (not made or isinstance(made[0], str))
        )
        results = (made,) if is_one else made
        place = self._results[name]
        if place >= len(results):
            raise Internal(
                f"output '{name}' is number {place} of a model that makes {len(results)} outputs"
            )
        return results[place]


def _check_complete(
    config: model_config_pb2.ModelConfig, arguments: Sequence[Any], given: Collection[str]
) -> None:
    """Refuse a configuration that leaves arguments without a value."""
    missing = [each.name for each in arguments if not each.has_default_value()]
    missing = [name for name in missing if name not in given]
    if missing:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {len(given)} inputs, "
            f"model provides {len(arguments)}; none is for {', '.join(missing)}"
        )


def _check_strings(config: model_config_pb2.ModelConfig) -> None:
    """Lists of strings have one dimension, which is the batch's if there is one."""
    tensors: list[_Tensor] = [*config.input, *config.output]
    for tensor in tensors:
        is_list = len(tensor.dims) == 1 and (not config.max_batch_size or tensor.dims[0] == 1)
        if NAME_OF_CONFIG_NUMBER[tensor.data_type] == BYTES and not is_list:
            raise InvalidArgument(
                f"unable to load model '{config.name}', '{tensor.name}': TorchScript has lists of "
                "strings only, of one dimension"
            )
