"""A TensorRT engine, loaded from its file. It has not been tried on a GPU yet."""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import tensorrt

from nereid.backends import ModelDescription, TensorDescription
from nereid.backends.parameters import parse_boolean
from nereid.core.errors import Internal, InvalidArgument, Unimplemented
from nereid_tensorrt.optimization_profiles import Profile, ShapeRange

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from nereid.pb import model_config_pb2

_log = logging.getLogger(__name__)

_DATATYPE: Final = {
    tensorrt.DataType.BOOL: "BOOL",
    tensorrt.DataType.UINT8: "UINT8",
    tensorrt.DataType.INT8: "INT8",
    tensorrt.DataType.INT32: "INT32",
    tensorrt.DataType.INT64: "INT64",
    tensorrt.DataType.HALF: "FP16",
    tensorrt.DataType.FLOAT: "FP32",
    tensorrt.DataType.BF16: "BF16",
}


class _Logger(tensorrt.ILogger):  # type: ignore[misc]  # TensorRT has no types
    """Logs TensorRT's messages, and keeps the last error: calls that fail return no reason."""

    def __init__(self) -> None:
        tensorrt.ILogger.__init__(self)
        self._levels = {
            tensorrt.ILogger.Severity.VERBOSE: logging.DEBUG,
            tensorrt.ILogger.Severity.INFO: logging.DEBUG,
            tensorrt.ILogger.Severity.WARNING: logging.WARNING,
        }
        self._last = threading.local()

    def log(self, severity: Any, message: str) -> None:
        """Log a message. TensorRT calls this method."""
        level = self._levels.get(severity, logging.ERROR)
        _log.log(level, "TensorRT: %s", message)
        if level == logging.ERROR:
            self._last.message = message

    def last_error(self) -> str:
        """Return the last error that TensorRT reported in this thread."""
        return str(getattr(self._last, "message", "TensorRT gives no reason"))


@functools.cache
def _logger() -> _Logger:
    # TensorRT accepts one logger per process.
    logger = _Logger()
    tensorrt.init_libnvinfer_plugins(logger, "")
    return logger


@functools.cache
def _load_plugin(path: str) -> None:
    if tensorrt.get_plugin_registry().load_library(path) is None:
        raise InvalidArgument(f"unable to load TensorRT plugin '{path}': {_logger().last_error()}")


class Engine:
    """An engine, which instances on one GPU may share; each creates contexts in its own thread."""

    def __init__(
        self, config: model_config_pb2.ModelConfig, path: Path, settings: Mapping[str, str]
    ) -> None:
        self._name = config.name
        logger = _logger()
        for plugin in filter(None, settings.get("plugins", "").split(";")):
            _load_plugin(plugin)
        # The runtime must outlive the engine.
        self._runtime = tensorrt.Runtime(logger)
        if parse_boolean(config, settings, "version-compatible", default=False):
            self._runtime.engine_host_code_allowed = True
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise Internal(f"failed to load '{self._name}': {logger.last_error()}")
        self.description = self._describe()
        self.profile_count = int(self._engine.num_optimization_profiles)

    def profile(self, number: int) -> Profile:
        """Return the ranges of shapes that an optimization profile allows."""
        ranges: Profile = {}
        for tensor in self.description.inputs:
            shapes = self._engine.get_tensor_profile_shape(tensor.name, number)
            ranges[tensor.name] = ShapeRange(*map(tuple, shapes))
        return ranges

    def scratch_bytes(self, profiles: Collection[int] | None) -> int:
        """Return the bytes of scratch memory for these profiles; `None` means all profiles."""
        if profiles is None:
            return int(self._engine.device_memory_size_v2)
        size_of = self._engine.get_device_memory_size_for_profile_v2
        return max(int(size_of(number)) for number in profiles)

    def create_context(self, profile: int, stream: int, scratch: tuple[int, int]) -> Any:
        """Return a new context for a profile; `scratch` is the address and size of its memory."""
        strategy = tensorrt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise self.last_call_error("unable to create TensorRT context")
        context.set_device_memory(*scratch)
        if not context.set_optimization_profile_async(profile, stream):
            raise self.last_call_error(f"can not set the specified optimization profile {profile}")
        return context

    @staticmethod
    def make_allocator(address: int, size_bytes: int) -> OutputAllocator:
        """Return the allocator for an output whose shape is known only after the execution."""
        return OutputAllocator(address, size_bytes)

    def last_call_error(self, what: str) -> Internal:
        """Return the error for a call that has just failed in this thread."""
        return Internal(f"{what} for '{self._name}': {_logger().last_error()}")

    def _describe(self) -> ModelDescription:
        engine = self._engine
        inputs: list[TensorDescription] = []
        outputs: list[TensorDescription] = []
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            is_input = engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT
            (inputs if is_input else outputs).append(self._describe_tensor(name))
        return ModelDescription(tuple(inputs), tuple(outputs))

    def _describe_tensor(self, name: str) -> TensorDescription:
        engine = self._engine
        if engine.is_shape_inference_io(name):
            raise Unimplemented(
                f"unable to load model '{self._name}', '{name}' is a shape tensor, which is not "
                "supported"
            )
        if engine.get_tensor_format(name) != tensorrt.TensorFormat.LINEAR:
            raise Unimplemented(
                f"unable to load model '{self._name}', '{name}' has a non-linear format, which "
                "is not supported"
            )
        datatype = _DATATYPE.get(engine.get_tensor_dtype(name))
        if datatype is None:
            raise InvalidArgument(
                f"unable to load model '{self._name}', unsupported datatype "
                f"'{engine.get_tensor_dtype(name)}' of '{name}'"
            )
        return TensorDescription(name, datatype, tuple(engine.get_tensor_shape(name)))


class OutputAllocator(tensorrt.IOutputAllocator):  # type: ignore[misc]  # TensorRT has no types
    """Gives TensorRT one buffer for an output whose shape is known only after the execution."""

    def __init__(self, address: int, size_bytes: int) -> None:
        tensorrt.IOutputAllocator.__init__(self)
        self._address, self._size_bytes = address, size_bytes
        self.shape: tuple[int, ...] = ()

    def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int | None:
        """Return the buffer's address; `None` if the output does not fit. TensorRT calls this."""
        return self._address if size <= self._size_bytes else None

    def reallocate_output_async(
        self,
        name: str,
        memory: int,
        size: int,
        alignment: int,
        _stream: int,
    ) -> int | None:
        """Return the same as reallocate_output(). TensorRT calls this method."""
        return self.reallocate_output(name, memory, size, alignment)

    def notify_shape(self, _name: str, shape: Any) -> None:
        """Remember the shape of the output. TensorRT calls this method."""
        self.shape = tuple(shape)
