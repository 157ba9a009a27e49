"""Validates requests against a model's configuration. Only this module creates entries.

It never reads the content of a tensor. The error texts and the order of the checks are Triton's.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal, InvalidArgument
from nereid.core.hash_order import in_hash_order
from nereid.core.tensors import datatypes
from nereid.core.tensors.shapes import VARIABLE, format_shape, shape_fits
from nereid.core.wire.messages import CLASSIFICATION
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_scheduler.batching.policies.queue_policies import QueuePolicies
from nereid_scheduler.batching.queues import request_prefix
from nereid_scheduler.core.requests.batch_frame import member_layout
from nereid_scheduler.core.requests.entry import Entry, ValidHead

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from nereid.core.wire.messages import InferRequest, InferResponse, Payload
    from nereid.model_config import InputSpec, ModelConfig
    from nereid_scheduler.core.requests.entry import EntryOwner

    Input = kserve_pb2.ModelInferRequest.InferInputTensor
    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096
# Clients and backends compute sizes as int64.
_MAX_TENSOR_BYTES: Final = 2**63 - 1
_NS_PER_S: Final = 1_000_000_000
# Elements without an order or, as on Triton, without arithmetic cannot be classified.
_UNCLASSIFIABLE: Final = frozenset({datatypes.BYTES, "BOOL", "FP16", "BF16"})

_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)


class Validator:
    """Check the requests of one model version. The methods raise NereidErrors."""

    def __init__(self, config: ModelConfig, max_heads: int = _MAX_HEADS) -> None:
        self._name = config.name
        self._queue_policies = QueuePolicies(config.batching)
        self._head_reader = _HeadReader(config)
        self._valid_heads = BoundedCache[bytes, ValidHead](max_heads, _MAX_HEAD_BYTES)

    def make_entry(
        self,
        request: InferRequest,
        on_response: Callable[[InferResponse], None],
        owner: EntryOwner,
        now_ns: int,
    ) -> Entry:
        """Check a request's head and sizes; return its entry with level and queue timeout set."""
        head = request.head
        valid = self._valid_heads.get(head) or self.check(head, request.request_id)
        payloads = request.payloads
        if (
            len(payloads) != 1
            or type(payloads[0]) is not bytes
            or len(payloads[0]) != valid.lone_bytes
        ):
            self.check_sizes(valid, payloads, request.request_id)
        if valid.completed_head:
            defaults = [row * valid.batch_size for row in valid.default_rows]
            request.payloads = payloads = [*payloads, *defaults]
            request.head = valid.completed_head
            valid = self.check(valid.completed_head, request.request_id)
        key = valid.shape_key
        if valid.shape_tensors:
            key = (key, *(payloads[index] for index in valid.shape_tensors))
        policies = self._queue_policies
        level, timeout_us = policies.default_level, 0
        if not policies.uniform:
            level = policies.level(request.priority)
            timeout_us = policies.timeout_us(level, request.timeout_us)
        deadline = request.deadline
        # Keyword arguments take longer.
        return Entry(
            request,
            valid,
            on_response,
            owner,
            now_ns,
            key,
            level,
            now_ns + timeout_us * 1000 if timeout_us else None,
            None if deadline is None else int(deadline * _NS_PER_S),
        )

    def check(self, head: bytes, request_id: str = "") -> ValidHead:
        """Check a head and return its content; raise InvalidArgument if it does not fit."""
        valid = self._valid_heads.get(head)
        if valid is None:
            valid = self._head_reader.read_head(head, request_prefix(request_id))
            self._valid_heads.remember(head, valid)
        return valid

    def check_sizes(
        self, valid: ValidHead, payloads: Sequence[Payload], request_id: str = ""
    ) -> None:
        """Check the payload sizes of a request against its head."""
        sizes = valid.sizes
        if len(payloads) != len(sizes):
            raise Internal(f"{len(payloads)} tensors came for {len(sizes)} inputs")
        for index, payload in enumerate(payloads):
            expected = sizes[index]
            got = payload.size_bytes if isinstance(payload, SharedMemory) else len(payload)
            if got != expected and expected is not None:
                raise InvalidArgument(
                    f"{request_prefix(request_id)}input byte size mismatch for input "
                    f"'{valid.input_names[index]}' for model '{self._name}'. "
                    f"Expected {expected}, got {got}"
                )
        if not valid.batch_size:
            raise InvalidArgument(
                f"{request_prefix(request_id)}inference request batch-size must be >= 1 "
                f"for '{self._name}'"
            )


class _HeadReader:
    def __init__(self, config: ModelConfig) -> None:
        self._name = config.name
        self._max_batch_size = config.max_batch_size
        self._inputs: dict[str, InputSpec] = {spec.name: spec for spec in config.inputs}
        self._outputs = {spec.name: spec.datatype for spec in config.outputs}
        self._required_names = [spec.name for spec in config.inputs if not spec.optional]
        self._required = len(self._required_names)
        self._defaults = {
            spec.name: spec.default for spec in config.inputs if spec.default is not None
        }
        self._padding = config.padding
        self._batches_by_tokens = (
            config.batching is not None and config.batching.max_batch_tokens > 0
        )

    def read_head(self, head: bytes, prefix: str) -> ValidHead:
        """Return a head's batch size, shapes and payload sizes, or raise Triton's error."""
        try:
            message = kserve_pb2.ModelInferRequest.FromString(head)
        except DecodeError as error:
            raise Internal("a request's head is damaged") from error
        inputs = message.inputs
        names = tuple(tensor.name for tensor in inputs)
        self._check_names(names, [tensor.name for tensor in message.outputs], prefix)
        try:
            batch_size, shapes, sizes = self._check_inputs(inputs, prefix)
        except InvalidArgument:
            # If there are several errors, raise the one that Triton finds first.
            by_name = {tensor.name: tensor for tensor in inputs}
            self._check_inputs([by_name[name] for name in in_hash_order(names)], prefix)
            raise
        length = elements = padded_elements = 0
        if self._padding is not None:
            elements = padded_elements = batch_size * _count_elements(shapes)
            # Requests of different sizes may share a batch: with max_batch_tokens all of them, or
            # else those that are padded to the same size.
            try:
                if self._batches_by_tokens:
                    length = self._padding.length(shapes)
                    shapes = self._padding.open_shapes(shapes)
                else:
                    shapes = self._padding.padded_shapes(shapes)
                    padded_elements = batch_size * _count_elements(shapes)
            except InvalidArgument as refusal:
                raise InvalidArgument(prefix + refusal.message) from None
        # Triton checks classifications when it responds, so last.
        self._check_classes(message.outputs)
        omitted = [name for name in self._defaults if name not in names]
        completed_head = self._complete(message, omitted, batch_size) if omitted else b""
        return ValidHead(
            batch_size=batch_size,
            lone_bytes=sizes[0] if batch_size and len(sizes) == 1 else None,
            shape_key=self._shape_key(shapes),
            sizes=tuple(sizes),
            input_names=names,
            shape_tensors=tuple(
                index for index, name in enumerate(names) if self._inputs[name].is_shape_tensor
            ),
            layout=member_layout(head, sizes),
            length=length,
            elements=elements,
            padded_elements=padded_elements,
            completed_head=completed_head,
            default_rows=tuple(self._defaults[name].raw for name in omitted),
        )

    def _complete(
        self, message: kserve_pb2.ModelInferRequest, omitted: Iterable[str], batch_size: int
    ) -> bytes:
        """Return the head with the defaults of these inputs."""
        for name in omitted:
            shape = self._defaults[name].shape
            message.inputs.add(
                name=name,
                datatype=self._inputs[name].datatype,
                shape=(batch_size, *shape) if self._max_batch_size > 0 else shape,
            )
        return message.SerializeToString()

    def _check_inputs(
        self, inputs: Sequence[Input], prefix: str
    ) -> tuple[int, dict[str, tuple[int, ...]], list[int | None]]:
        """Return the batch size, the dimensions without the batch, and the sizes in bytes."""
        batch_size = self._batch_size(inputs, prefix)
        shapes: dict[str, tuple[int, ...]] = {}
        sizes: list[int | None] = []
        for tensor in inputs:
            dims, size = self._check_tensor(tensor, batch_size, prefix)
            shapes[tensor.name] = dims
            sizes.append(size)
        return batch_size, shapes, sizes

    def _check_names(self, names: Sequence[str], outputs: Sequence[str], prefix: str) -> None:
        seen = set(names)
        if len(seen) < len(names):
            raise InvalidArgument(f"{prefix}input '{_repeated(names)}' already exists in request")
        if len(outputs) > 1 and len(set(outputs)) < len(outputs):
            raise InvalidArgument(
                f"{prefix}output '{_repeated(outputs)}' already exists in request"
            )
        for name in sorted(outputs):
            if name not in self._outputs:
                raise InvalidArgument(
                    f"unexpected inference output '{name}' for model '{self._name}'"
                )
        if not self._required <= len(names) <= len(self._inputs):
            raise InvalidArgument(prefix + self._count_text(names))
        unknown = seen - self._inputs.keys()
        if unknown:
            name = next(name for name in in_hash_order(names) if name in unknown)
            raise InvalidArgument(f"unexpected inference input '{name}' for model '{self._name}'")
        # Triton only counts the inputs, so its model fails if a required one is missing.
        if not seen.issuperset(self._required_names):
            raise InvalidArgument(prefix + self._count_text(names))

    def _check_classes(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            datatype = self._outputs[output.name]
            if CLASSIFICATION in output.parameters and datatype in _UNCLASSIFIABLE:
                raise InvalidArgument(
                    f"class result not available for output due to unsupported type '{datatype}'",
                    accepted=True,
                )

    def _count_text(self, names: Sequence[str]) -> str:
        missing = [name for name in self._required_names if name not in names]
        if self._required == len(self._inputs):
            expected = f"expected {self._required} inputs"
        else:
            expected = f"expected number of inputs between {self._required} and {len(self._inputs)}"
        # Triton strips the bracket together with the trailing comma.
        absent = _quoted(missing) if missing else "]"
        return (
            f"{expected} but got {len(names)} inputs for model '{self._name}'. "
            f"Got input(s) {_quoted(in_hash_order(names))}, "
            f"but missing required input(s) {absent}. "
            "Please provide all required input(s)."
        )

    def _batch_size(self, inputs: Iterable[Input], prefix: str) -> int:
        """Return the batch size, which must be the same in all inputs; 1 without batching."""
        if self._max_batch_size <= 0:
            return 1
        batch_size: int | None = None
        for tensor in inputs:
            if self._inputs[tensor.name].is_shape_tensor:
                continue
            if not tensor.shape:
                raise InvalidArgument(
                    f"{prefix}input '{tensor.name}' has no shape but model requires batch "
                    f"dimension for '{self._name}'"
                )
            size = tensor.shape[0]
            if size < 0:
                raise InvalidArgument(prefix + self._unspecified_text(tensor))
            if batch_size is None:
                batch_size = size
            elif size != batch_size:
                raise InvalidArgument(
                    f"{prefix}input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self._name}'"
                )
        if batch_size is None:
            return 1
        if batch_size > self._max_batch_size:
            raise InvalidArgument(
                f"{prefix}inference request batch-size must be <= {self._max_batch_size} "
                f"for '{self._name}'"
            )
        return batch_size

    def _check_tensor(
        self, tensor: Input, batch_size: int, prefix: str
    ) -> tuple[tuple[int, ...], int | None]:
        """Return the tensor's dimensions without the batch, and its size in bytes."""
        spec = self._inputs[tensor.name]
        if tensor.datatype != spec.datatype:
            got = tensor.datatype if tensor.datatype in datatypes.NAMES else "<invalid>"
            raise InvalidArgument(
                f"{prefix}inference input '{tensor.name}' data-type is '{got}', but model "
                f"'{self._name}' expects '{spec.datatype}'"
            )
        batched = self._max_batch_size > 0 and not spec.is_shape_tensor
        dims = tuple(tensor.shape[1:] if batched else tensor.shape)
        if len(dims) == len(spec.dims) and min(dims, default=0) < 0:
            raise InvalidArgument(prefix + self._unspecified_text(tensor))
        if not shape_fits(dims, spec.dims):
            raise InvalidArgument(prefix + self._shape_text(tensor, spec))
        # A zero must not hide a too large dimension. As on Triton, a batch of 0 has no dimension.
        full = (batch_size, *dims) if batched and batch_size else dims
        width = datatypes.SIZE_BYTES.get(spec.datatype, 1)
        if datatypes.element_count([dim for dim in full if dim]) * width > _MAX_TENSOR_BYTES:
            counted = "element count" if spec.datatype == datatypes.BYTES else "byte size"
            raise InvalidArgument(
                f"{counted} for tensor '{tensor.name}' exceeds maximum size of {_MAX_TENSOR_BYTES}"
            )
        return dims, datatypes.byte_size(spec.datatype, full)

    def _unspecified_text(self, tensor: Input) -> str:
        return (
            f"All input dimensions should be specified for input '{tensor.name}' for model "
            f"'{self._name}', got {format_shape(tensor.shape)}"
        )

    def _shape_text(self, tensor: Input, spec: InputSpec) -> str:
        batched = self._max_batch_size > 0
        expected = (VARIABLE, *spec.dims) if batched else spec.dims
        return (
            f"unexpected shape for input '{tensor.name}' for model '{self._name}'. "
            f"Expected {format_shape(expected)}, got {format_shape(tensor.shape)}. "
            f"{_BATCH_NOTE if batched else ''}"
        )

    def _shape_key(self, shapes: dict[str, tuple[int, ...]]) -> Hashable:
        any_optional = self._required < len(self._inputs)
        key: list[Hashable] = []
        for name, spec in self._inputs.items():
            if name not in shapes:
                continue
            if spec.is_shape_tensor or (VARIABLE in spec.dims and not spec.allow_ragged):
                key.append((name, shapes[name]))
            elif any_optional:
                key.append(name)
        return tuple(key)


def _count_elements(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(datatypes.element_count(shape) for shape in shapes.values())


def _repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is repeated")


def _quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
