"""The PyTorch backend: TorchScript (model.pt) and AOTInductor's packages (model.pt2).

Both need a complete configuration.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from nereid.backends import (
    EMPTY_DESCRIPTION,
    BackendCapabilities,
    Capabilities,
    InstanceSpec,
    ModelDescription,
)
from nereid.backends.model_file import find_model_file
from nereid.backends.parameters import (
    parameters_of,
    parse_boolean,
    parse_threads,
)
from nereid.backends.shared_models import SharedModels
from nereid.core.errors import Internal, InvalidArgument, Unavailable, Unimplemented, cause_of
from nereid.core.known_backends import TORCH_AOTI_PLATFORM
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.pb import model_config_pb2
from nereid_pytorch.aoti_package import AotiPackage, load_package
from nereid_pytorch.tensor_names import Argument, arguments_of, results_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from nereid.core.tensors.tensors import Array

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_log = logging.getLogger(__name__)

DEFAULT_FILENAME: Final = "model.pt"
AOTI_FILENAME: Final = "model.pt2"

# RuntimeError is the usual one; the others are rare.
_ERRORS: Final = (RuntimeError, ValueError, TypeError, IndexError, KeyError)
# Parameters for TorchScript's optimiser; they act on the whole process.
_SWITCHES: Final = {
    "ENABLE_JIT_EXECUTOR": "_jit_set_profiling_executor",
    "ENABLE_JIT_PROFILING": "_jit_set_profiling_mode",
    "ENABLE_TENSOR_FUSER": "_jit_set_texpr_fuser_enabled",
}
_INTEROP_THREADS: Final = "INTER_OP_THREAD_COUNT"
_KIND_MODEL: Final = model_config_pb2.ModelInstanceGroup.KIND_MODEL

_shared: SharedModels[Any] = SharedModels()


def loads_native_code(_config: model_config_pb2.ModelConfig) -> bool:
    """Return True: TorchScript and packages of AOTInductor are code."""
    return True


capabilities: Final = BackendCapabilities(loads_native_code=loads_native_code)


def uses_gpus() -> bool:
    """Return whether the installed torch supports CUDA and finds a GPU."""
    return bool(torch.cuda.is_available())


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Return an empty description, because the files state neither shapes nor datatypes."""
    find_model_file(config, version_path, _default_filename(config))
    return EMPTY_DESCRIPTION


def load(spec: InstanceSpec) -> TorchModel:
    """Return a module on the instance's device; apply the settings for the instance's thread."""
    config = spec.config
    parameters = parameters_of(config)
    if config.runtime == "model.py":
        raise Unimplemented(
            f"unable to load model '{config.name}', PyTorch models as Python source (runtime "
            "'model.py') are not offered; use the backend 'python'"
        )
    device = _device(spec)
    _set_up_thread(config, parameters, device, spec.threads)
    capability = ""
    if device is not None and device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    path = find_model_file(config, spec.version_path, _default_filename(config), capability)
    share = parse_boolean(config, parameters, "ENABLE_WEIGHT_SHARING", default=False)
    try:
        module = (
            _shared.get_or_load(path, str(device), lambda: _load_module(config, path, device))
            if share
            else _load_module(config, path, device)
        )
        arguments = _arguments(module)
    except _ERRORS as error:
        raise Internal(f"failed to load '{config.name}': {cause_of(error)}") from error
    return TorchModel(config, module, arguments, device)


def _device(spec: InstanceSpec) -> torch.device | None:
    """Return the device; `None` (KIND_MODEL) keeps each part on the device that the file names."""
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
    threads: int,
) -> None:
    """Apply settings to the process and to the current thread, which must be the instance's."""
    for name, switch in _SWITCHES.items():
        if name in parameters:
            getattr(torch._C, switch)(parse_boolean(config, parameters, name, default=True))  # noqa: SLF001 - TorchScript's switches have no public name
    optimised = not parse_boolean(config, parameters, "DISABLE_OPTIMIZED_EXECUTION", default=False)
    torch._C._set_graph_executor_optimize(optimised)  # noqa: SLF001 - likewise
    if parse_boolean(config, parameters, "DISABLE_CUDNN", default=False):
        torch.backends.cudnn.enabled = False
    threads = parse_threads(config, parameters, "INTRA_OP_THREAD_COUNT", threads)
    if threads:
        torch.set_num_threads(threads)
    _set_interop_threads(config, parse_threads(config, parameters, _INTEROP_THREADS, 0))
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))


def _set_interop_threads(config: model_config_pb2.ModelConfig, threads: int) -> None:
    """Set the threads of the process between operators. PyTorch takes the first setting alone."""
    if not threads or threads == torch.get_num_interop_threads():
        return
    try:
        torch.set_num_interop_threads(threads)
    except RuntimeError:
        _log.warning(
            "%s of model %s has no effect, the process has been using %d threads; give all models"
            " one value",
            *(_INTEROP_THREADS, config.name, torch.get_num_interop_threads()),
        )


def _default_filename(config: model_config_pb2.ModelConfig) -> str:
    return AOTI_FILENAME if config.platform == TORCH_AOTI_PLATFORM else DEFAULT_FILENAME


def _load_module(
    config: model_config_pb2.ModelConfig, path: Path, device: torch.device | None
) -> Any:
    if config.platform == TORCH_AOTI_PLATFORM:
        return load_package(config.name, path, device)
    module = torch.jit.load(str(path), map_location=device)
    module.eval()
    return module


def _arguments(module: Any) -> list[Argument]:
    if isinstance(module, AotiPackage):
        return [Argument(name) for name in module.arguments]
    return [
        Argument(
            argument.name,
            is_dictionary=argument.type.kind() == "DictType",
            is_required=not argument.has_default_value(),
        )
        for argument in module.forward.schema.arguments[1:]
    ]


class TorchModel:
    """A module and the way to call it; only its instance's thread uses it."""

    description = EMPTY_DESCRIPTION
    capabilities = Capabilities(bytes_as_text=True)

    def __init__(
        self,
        config: model_config_pb2.ModelConfig,
        module: Any,
        arguments: Sequence[Argument],
        device: torch.device | None,
    ) -> None:
        self._module = module
        self._device = device
        self._batching = config.max_batch_size > 0
        parameters = parameters_of(config)
        inference = parse_boolean(config, parameters, "INFERENCE_MODE", default=True)
        self._mode = torch.inference_mode if inference else torch.no_grad
        # Triton has one name for TorchScript and another for packages.
        self._cleans_cache = any(
            parse_boolean(config, parameters, name, default=False)
            for name in ("ENABLE_CACHE_CLEANING", "CACHE_CLEANING_ENABLED")
        )
        # Name of the module's only argument, if it is a dictionary of inputs; otherwise empty.
        self._dictionary = ""
        self._arguments: dict[str, str] = {}
        added = _batch_inputs(config)
        names = [*(tensor.name for tensor in config.input), *added]
        if len(arguments) == 1 and arguments[0].is_dictionary:
            self._dictionary = arguments[0].name
        else:
            self._arguments = arguments_of(
                config.name, names, [argument.name for argument in arguments]
            )
            _check_complete(config, arguments, self._arguments.values())
        self._results = results_of(
            config.name,
            [tensor.name for tensor in config.output],
            module.results if isinstance(module, AotiPackage) else (),
        )
        tensors: list[_Tensor] = [*config.input, *config.output]
        self._datatypes = {
            tensor.name: NAME_OF_CONFIG_NUMBER[tensor.data_type] for tensor in tensors
        } | added
        _check_strings(config)

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs in the names' order; raise NereidError if the model fails."""
        try:
            with self._mode():
                tensors = {name: self._to_tensor(name, array) for name, array in inputs.items()}
                if self._dictionary:
                    results = self._module(**{self._dictionary: tensors})
                else:
                    arguments = self._arguments
                    results = self._module(
                        **{arguments[name]: each for name, each in tensors.items()}
                    )
                return [self._output(name, results) for name in outputs]
        except _ERRORS as error:
            raise Internal(f"PyTorch execute failure: {cause_of(error)}") from error
        finally:
            if self._cleans_cache and self._device is not None and self._device.type == "cuda":
                torch.cuda.empty_cache()

    def close(self) -> None:
        """Release the module; it is freed unless other instances share it."""
        del self._module

    def _to_tensor(self, name: str, array: Array) -> Any:
        datatype = self._datatypes[name]
        if datatype == BYTES:
            return array.ravel().tolist()
        # Copy the array: it is read-only, and a module may write to its arguments.
        tensor = torch.from_numpy(array.copy())
        if datatype == "BF16":
            tensor = tensor.view(torch.bfloat16)
        return tensor if self._device is None else tensor.to(self._device)

    def _output(self, name: str, results: Any) -> Array:
        result = results[name] if isinstance(results, dict) else self._result(name, results)
        if isinstance(result, list):
            strings = np.array(result, np.object_)
            return strings.reshape(-1, 1) if self._batching else strings
        tensor = result.cpu()
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.contiguous().view(torch.uint16)
        array: Array = tensor.numpy(force=True)
        return array

    def _result(self, name: str, results: Any) -> Any:
        # A list of strings is a single result; any other list holds several results.
        is_one = isinstance(results, torch.Tensor) or (
            isinstance(results, list) and (not results or isinstance(results[0], str))
        )
        if is_one:
            results = (results,)
        index = self._results[name]
        if index >= len(results):
            raise Internal(
                f"output '{name}' is number {index} of a model that makes {len(results)} outputs"
            )
        return results[index]


def _batch_inputs(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    """Map the name of each input that batches add (batch_input) to its datatype."""
    return {
        name: NAME_OF_CONFIG_NUMBER[batch_input.data_type]
        for batch_input in config.batch_input
        for name in batch_input.target_name
    }


def _check_complete(
    config: model_config_pb2.ModelConfig, arguments: Sequence[Argument], given: Collection[str]
) -> None:
    missing = [
        argument.name
        for argument in arguments
        if argument.is_required and argument.name not in given
    ]
    if missing:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration expects {len(given)} inputs, "
            f"model provides {len(arguments)}; none is for {', '.join(missing)}"
        )


def _check_strings(config: model_config_pb2.ModelConfig) -> None:
    """Refuse BYTES tensors of several dimensions, and any in packages, which have no strings."""
    tensors: list[_Tensor] = [*config.input, *config.output]
    for tensor in tensors:
        if config.platform == TORCH_AOTI_PLATFORM:
            if NAME_OF_CONFIG_NUMBER[tensor.data_type] == BYTES:
                raise InvalidArgument(
                    f"unable to load model '{config.name}', '{tensor.name}': packages of "
                    "AOTInductor have no strings"
                )
            continue
        is_list = len(tensor.dims) == 1 and (not config.max_batch_size or tensor.dims[0] == 1)
        if NAME_OF_CONFIG_NUMBER[tensor.data_type] == BYTES and not is_list:
            raise InvalidArgument(
                f"unable to load model '{config.name}', '{tensor.name}': TorchScript has lists of "
                "strings only, of one dimension"
            )
