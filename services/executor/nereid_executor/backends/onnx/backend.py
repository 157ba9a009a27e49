"""The ONNX Runtime backend: model.onnx files on the CPU, on CUDA and on TensorRT.

GPUs, and BF16 (for which numpy has no type), need IO binding. STRING tensors exist only on the CPU.
"""

from __future__ import annotations

import ctypes
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime as ort

from nereid.backends import (
    BackendCapabilities,
    Capabilities,
    InstanceSpec,
    ModelDescription,
    TensorDescription,
)
from nereid.backends.model_file import find_model_file, require_file
from nereid.backends.parameters import parameters_of
from nereid.core.errors import Internal, InvalidArgument, Unimplemented
from nereid.core.tensors.datatypes import BYTES
from nereid.model_config import check_model_file, check_session_costs
from nereid_executor.backends.onnx.device_settings import device_io_settings
from nereid_executor.backends.onnx.errors import (
    ORT_ERRORS,
    error_text,
    translated_errors,
)
from nereid_executor.backends.onnx.escaped_text import escape_strings, unescape_strings
from nereid_executor.backends.onnx.model_graph import (
    only_moves_strings,
    quantizes_by_batch,
    unranked_tensors,
)
from nereid_executor.backends.onnx.optimized_graphs import kept_graph, open_session
from nereid_executor.backends.onnx.pruned_graph import prune_outputs
from nereid_executor.backends.onnx.session_options import (
    CPU,
    CUDA,
    bare_options,
    execution_providers,
    keep_engines,
    loads_native_code,
    register_operators,
    run_options,
    session_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nereid.backends.device_io.device_model import DeviceModel
    from nereid.core.tensors.tensors import Array
    from nereid.pb import model_config_pb2

_log = logging.getLogger(__name__)

capabilities: Final = BackendCapabilities(loads_native_code=loads_native_code)

DEFAULT_FILENAME: Final = "model.onnx"

# A model parameter that lists sets of outputs, such as "a; b, c".
_OUTPUT_SETS: Final = "output_sets"
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
_WEIGHTS_FOLDER: Final = "session.model_external_initializers_file_folder_path"

_DATATYPE: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": BYTES,
    "tensor(bfloat16)": "BF16",
}
_ONNX_BFLOAT16: Final = 16


def uses_gpus() -> bool:
    """Return whether the installed ONNX Runtime supports CUDA."""
    return CUDA in ort.get_available_providers()


def describe(config: model_config_pb2.ModelConfig, version_path: Path) -> ModelDescription:
    """Return the graph's inputs and outputs, from a session without optimisation."""
    path = _model_file(config, version_path)
    options = bare_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    register_operators(config, version_path, options)
    session = _session(config, path, options, [(CPU, {})], _configured_outputs(config))
    return _describe(config, session, path)


def load(spec: InstanceSpec) -> OnnxModel | OutputSetsModel | DeviceModel:
    """Return a model with a new session on the instance's device."""
    config = spec.config
    path = _model_file(config, spec.version_path)
    options = session_options(config, spec.settings, spec.threads)
    register_operators(config, spec.version_path, options)

    def make_session(
        chosen: Sequence[Any], outputs: frozenset[str] = frozenset()
    ) -> tuple[ort.InferenceSession, ModelDescription]:
        session = _session(config, path, options, chosen, outputs, settings=spec.settings)
        if spec.gpu is not None and CUDA not in session.get_providers():
            raise Internal(
                f"failed to load '{config.name}': CUDA could not be used on GPU {spec.gpu}"
            )
        description = _describe(config, session, path)
        check_model_file(config, description)
        return session, description

    chosen = execution_providers(config, spec.gpu, ort.get_available_providers())
    chosen = keep_engines(chosen, spec.version_path)
    if spec.gpu is not None:
        device_io = device_io_settings(config)
        if device_io is not None:
            from nereid_executor.backends.onnx import device_model  # noqa: PLC0415

            return device_model.load(config, spec.gpu, chosen, device_io, make_session)
    names = _configured_outputs(config)
    session, description = make_session(chosen, names)
    escapes_bytes = any(one.datatype == BYTES for one in description.inputs) and (
        only_moves_strings(path)
    )

    def make_model(session: ort.InferenceSession) -> OnnxModel:
        on_gpu = spec.gpu is not None
        return OnnxModel(config, session, description, on_gpu=on_gpu, escapes_bytes=escapes_bytes)

    model = make_model(session)
    smaller = {}
    for outputs in _output_sets(config, description):
        pruned = _pruned_session(config, path, options, chosen, outputs, settings=spec.settings)
        if pruned is not None:
            smaller[outputs] = make_model(pruned)
    return OutputSetsModel(model, smaller) if smaller else model


def _configured_outputs(config: model_config_pb2.ModelConfig) -> frozenset[str]:
    """Return the outputs that can be requested. An empty set stands for all outputs."""
    if not config.output:
        return frozenset()
    states = (state.output_name for state in config.sequence_batching.state)
    return frozenset([*(tensor.name for tensor in config.output), *states])


def _output_sets(
    config: model_config_pb2.ModelConfig, description: ModelDescription
) -> list[frozenset[str]]:
    """Return the sets of outputs that get a session of their own, smallest first."""
    text = parameters_of(config).get(_OUTPUT_SETS, "")
    known = {tensor.name for tensor in description.outputs}
    sets = {
        frozenset(name.strip() for name in one.split(",")) for one in text.split(";") if one.strip()
    }
    if sets:
        check_session_costs(config, 1 + len(sets), f"parameter '{_OUTPUT_SETS}'")
    for name in sorted(frozenset().union(*sets) - known):
        raise InvalidArgument(
            f"unable to load model '{config.name}', parameter '{_OUTPUT_SETS}' names '{name}', "
            "which is no output"
        )
    return sorted(sets, key=lambda each: (len(each), sorted(each)))


def _model_file(config: model_config_pb2.ModelConfig, version_path: Path) -> Path:
    path = find_model_file(config, version_path, DEFAULT_FILENAME)
    if path.is_dir():
        # For a model with external data, the configured name may be the directory of the file.
        path = require_file(config, path / DEFAULT_FILENAME)
    return path


def _session(  # noqa: PLR0913 (as _pruned_session)
    config: model_config_pb2.ModelConfig,
    path: Path,
    options: ort.SessionOptions,
    chosen: Sequence[Any],
    outputs: frozenset[str] = frozenset(),
    *,
    settings: Mapping[str, str] = _NO_SETTINGS,
) -> ort.InferenceSession:
    """Return a session, if possible without the parts that `outputs` (empty: all) do not need."""
    if outputs:
        pruned = _pruned_session(config, path, options, chosen, outputs, settings=settings)
        if pruned is not None:
            return pruned
    with translated_errors(f"failed to load '{config.name}': "):
        return _open(path, str(path), options, chosen, settings)


def _pruned_session(  # noqa: PLR0913 (one call of ONNX Runtime's)
    config: model_config_pb2.ModelConfig,
    path: Path,
    options: ort.SessionOptions,
    chosen: Sequence[Any],
    outputs: frozenset[str],
    *,
    settings: Mapping[str, str],
) -> ort.InferenceSession | None:
    """Return a session that computes only these outputs; `None` if that is impossible."""
    pruned = prune_outputs(path, outputs)
    if pruned is None:
        return None
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
    try:
        return _open(path, pruned, options, chosen, settings)
    except ORT_ERRORS as error:
        _log.info(
            "model %s: all outputs are computed, whichever are asked for: %s",
            config.name,
            error_text(error),
        )
        return None
    finally:
        # The entry must not apply to models that are loaded from their file.
        options.add_session_config_entry(_WEIGHTS_FOLDER, "")


def _open(
    path: Path,
    model: str | bytes,
    options: ort.SessionOptions,
    chosen: Sequence[Any],
    settings: Mapping[str, str],
) -> ort.InferenceSession:
    kept = kept_graph(settings, path, model, options, chosen)
    if kept is not None:
        return open_session(kept, model, options)
    # The fallback would replace a failing provider with the CPU and print a line to stdout.
    return ort.InferenceSession(model, options, providers=list(chosen), enable_fallback=False)


def _describe(
    config: model_config_pb2.ModelConfig, session: ort.InferenceSession, path: Path
) -> ModelDescription:
    optional = session.get_overridable_initializers()
    inputs = [*session.get_inputs(), *optional]
    unranked: frozenset[str] = frozenset()
    if any(not node.shape for node in (*inputs, *session.get_outputs())):
        # ONNX Runtime shows tensors of unknown rank like scalars.
        unranked = unranked_tensors(path)
    configured = {tensor.name for tensor in config.output}
    optional_names = {node.name for node in optional}
    described_inputs = [
        _describe_tensor(config, "input", node, unranked)._replace(
            optional=node.name in optional_names
        )
        for node in inputs
    ]
    described_outputs = [
        _describe_tensor(config, "output", node, unranked)
        for node in session.get_outputs()
        # A configuration may omit outputs that are not tensors, such as the maps of a ZipMap.
        if not configured or node.name in configured
    ]
    return ModelDescription(
        tuple(described_inputs),
        tuple(described_outputs),
        mixes_rows=quantizes_by_batch(path),
    )


def _describe_tensor(
    config: model_config_pb2.ModelConfig, role: str, node: Any, unranked: frozenset[str]
) -> TensorDescription:
    datatype = _DATATYPE.get(node.type)
    if datatype is None:
        raise InvalidArgument(
            f"unable to load model '{config.name}', unsupported datatype '{node.type}' "
            f"for {role} '{node.name}'"
        )
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    return TensorDescription(node.name, datatype, None if node.name in unranked else dims)


class OnnxModel:
    """A session and the way to run it. Only its instance's thread uses it."""

    def __init__(
        self,
        config: model_config_pb2.ModelConfig,
        session: ort.InferenceSession,
        description: ModelDescription,
        *,
        on_gpu: bool,
        escapes_bytes: bool = False,
    ) -> None:
        self.description = description
        self.capabilities = Capabilities(
            bytes_as_text=True, escapes_bytes=escapes_bytes, leaves_arrays=True
        )
        self._name = config.name
        self._session = session
        self._options = run_options(config)
        tensors = (*description.inputs, *description.outputs)
        self._bf16 = frozenset(one.name for one in tensors if one.datatype == "BF16")
        has_text = any(one.datatype == BYTES for one in tensors)
        if has_text and self._bf16:
            raise Unimplemented(f"unable to load model '{self._name}', it has both BF16 and BYTES")
        # IO binding does not support strings. A plain run copies strings to and from the GPU.
        self._uses_binding = (on_gpu and not has_text) or bool(self._bf16)
        # The session's public methods check names again, which takes 2 us.
        self._run = getattr(session, "_sess", session).run

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs in this order; raise NereidError if the model fails."""
        try:
            if self._uses_binding:
                return self._execute_bound(inputs, outputs)
            try:
                arrays: list[Array] = self._run(outputs, inputs, self._options)
            except UnicodeEncodeError:
                escaped = {name: escape_strings(array) for name, array in inputs.items()}
                results = self._run(outputs, escaped, self._options)
                arrays = [unescape_strings(array) for array in results]
        except ORT_ERRORS as error:
            raise Internal(error_text(error)) from error
        return arrays

    def close(self) -> None:
        """Free the session."""
        del self._run, self._session

    def _execute_bound(self, inputs: dict[str, Array], outputs: Sequence[str]) -> list[Array]:
        binding = self._session.io_binding()
        values = []
        for name, array in inputs.items():
            if name in self._bf16:
                value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BFLOAT16)
            else:
                value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
            # The list keeps the value alive while the session runs.
            values.append(value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        binding.synchronize_inputs()
        self._session.run_with_iobinding(binding, self._options)
        binding.synchronize_outputs()
        arrays = [_to_array(value) for value in binding.get_outputs()]
        # An output that is also an input shares the input's memory, which is valid only during this
        # call.
        return [
            array.copy()
            if any(np.may_share_memory(array, given) for given in inputs.values())
            else array
            for array in arrays
        ]


class OutputSetsModel:
    """Runs each batch on the smallest session that has the requested outputs."""

    def __init__(self, whole: OnnxModel, smaller: Mapping[frozenset[str], OnnxModel]) -> None:
        """Use the first model in `smaller` whose set (the key) has all requested outputs."""
        self.description = whole.description
        self.capabilities = whole.capabilities
        self._whole = whole
        self._smaller = smaller
        self._chosen: dict[tuple[str, ...], OnnxModel] = {}

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Return the named outputs in this order; raise NereidError if the model fails."""
        model = self._chosen.get(tuple(outputs)) or self._choose(outputs)
        return model.execute(inputs, outputs)

    def close(self) -> None:
        """Free all sessions."""
        self._chosen.clear()
        for model in (self._whole, *self._smaller.values()):
            model.close()

    def _choose(self, outputs: Sequence[str]) -> OnnxModel:
        fitting = (model for names, model in self._smaller.items() if names.issuperset(outputs))
        model = self._chosen[tuple(outputs)] = next(fitting, self._whole)
        return model


def _to_array(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    size_bytes = 2 * int(np.prod(shape))
    # The bytes are copied, because the memory belongs to the value.
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size_bytes), np.uint16).reshape(shape)
