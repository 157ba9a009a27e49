"""Parses and writes the heads of requests and responses, for an ensemble and for its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal, Unimplemented
from nereid.core.hash_order import in_hash_order
from nereid.core.tensors.classification import (
    Classification,
    request_classification,
    requested_classifications,
)
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.shapes import VARIABLE, shape_fits
from nereid.core.wire.codecs import write_parameters
from nereid.model_config.defaults import read_defaults
from nereid.model_config.reshapes import input_reshapes, output_reshapes
from nereid.pb import kserve_pb2
from nereid_scheduler.versions.ensembles.graphs.graph import Plan, steps_of
from nereid_scheduler.versions.ensembles.graphs.sequence_place import StatedPlace, stated_place

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from nereid.core.wire.messages import InferResponse, Payload
    from nereid.model_config import ModelConfig
    from nereid.model_config.reshapes import Reshape
    from nereid_scheduler.versions.ensembles.graphs.graph import Step
    from nereid_scheduler.versions.ensembles.graphs.sequence_place import SequencePlace
    from nereid_scheduler.versions.model_version import ModelVersion

# Limit for each table, as clients may send any number of different heads.
MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096

_new_tuple: Final = tuple.__new__

# Name, datatype, shape.
_Described = tuple[str, str, tuple[int, ...]]
# The last item says whether the shape begins with a batch dimension.
_Given = tuple[str, str, tuple[int, ...], bool]
_DescribedResponse = tuple[tuple[_Described, ...], StatedPlace | None]


class SegmentLease:
    """Executor's segment with tensors. `uses`: number of steps, conditions and responses."""

    __slots__ = ("in_use", "segment_name", "uses")

    def __init__(self, segment_name: str, uses: int) -> None:
        self.segment_name = segment_name
        self.uses = uses
        self.in_use = False


class Tensor(NamedTuple):
    """Tensor between steps."""

    datatype: str
    shape: tuple[int, ...]
    payload: Payload
    # Set if the payload is in shared memory.
    lease: SegmentLease | None = None
    # Set if the tensor is needed as well. Otherwise the classification replaces the tensor.
    classes: Tensor | None = None
    # Place of the steps that read the tensor, if it differs from the ensemble's.
    place: SequencePlace | None = None
    # True if the ensemble (for inputs) or the step's model has a batch dimension.
    batched: bool = False


def _tensor(
    datatype: str,
    shape: tuple[int, ...],
    payload: Payload,
    lease: SegmentLease | None,
    batched: bool,
) -> Tensor:
    """Create a tensor faster than by calling the class."""
    return _new_tuple(Tensor, (datatype, shape, payload, lease, None, None, batched))


class ParsedHead:
    """Parsed head of a request to an ensemble."""

    __slots__ = ("batched", "classes", "inputs", "omitted", "plan")

    def __init__(
        self,
        plan: Plan,
        classes: Mapping[str, Classification],
        inputs: tuple[_Described, ...],
        omitted: tuple[str, ...],
        *,
        batched: bool,
    ) -> None:
        self.batched = batched
        self.plan = plan
        self.classes = classes
        self.inputs = inputs
        self.omitted = omitted

    def input_tensors(self, payloads: Sequence[Payload]) -> dict[str, Tensor | None]:
        """Return a request's inputs by name; an optional input that the request omits is `None`."""
        tensors: dict[str, Tensor | None] = dict.fromkeys(self.omitted)
        for (name, datatype, shape), payload in zip(self.inputs, payloads):  # noqa: B905 - validated
            tensors[name] = _tensor(datatype, shape, payload, None, self.batched)
        return tensors

    def response_tensors(self, outputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Return a response's tensors, with requested classes. outputs: in the plan's order."""
        if not self.classes:
            return outputs
        tensors: list[Tensor | None] = []
        beside: list[Tensor | None] = []
        for name, tensor in zip(self.plan.outputs, outputs, strict=True):
            requested = self.classes.get(name)
            classes = tensor and (tensor.classes or tensor)
            if requested is not None and requested.beside:
                beside.append(classes)
            tensors.append(tensor if requested is None or requested.beside else classes)
        return (*tensors, *beside)

    def response_names(self) -> list[tuple[str, bool]]:
        """Return the name of each tensor of a response, and whether it is a classification."""
        names, beside = [], []
        for name in self.plan.outputs:
            requested = self.classes.get(name)
            names.append((name, requested is not None and not requested.beside))
            if requested is not None and requested.beside:
                beside.append((name, True))
        return [*names, *beside]


class EnsembleHeads:
    """Parse heads of an ensemble's requests, and write those of its responses."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, tuple[str, ...]],
        max_heads: int = MAX_HEADS,
    ) -> None:
        """labels: maps an output to its classes' labels, if the ensemble has labels of its own."""
        self._config = config
        self._version = version
        self._labels = labels
        # In the order in which Triton sends them.
        self._output_names = in_hash_order([spec.name for spec in config.outputs])
        self._batched = config.max_batch_size > 0
        self._steps = steps_of(config.proto)
        self.defaults = read_defaults(config.proto)
        # Inputs are reshaped before steps get them.
        self._input_reshapes = input_reshapes(config.proto)
        self._output_reshapes = output_reshapes(config.proto)
        self._parsed: BoundedCache[bytes, ParsedHead] = BoundedCache(max_heads, _MAX_HEAD_BYTES)
        self._plans: BoundedCache[Hashable, tuple[Plan, dict[str, Classification]]]
        self._plans = BoundedCache(max_heads)
        self._responses: BoundedCache[Hashable, bytes] = BoundedCache(max_heads)

    def parse_request(self, head: bytes) -> ParsedHead:
        """Parse a valid request's head; raise NereidError if a requested output cannot be made."""
        return self._parsed.get(head) or self._parsed.remember(head, self._parse(head))

    def _parse(self, head: bytes) -> ParsedHead:
        message = kserve_pb2.ModelInferRequest.FromString(head)
        requested = {output.name for output in message.outputs}
        names = tuple(name for name in self._output_names if not requested or name in requested)
        classes = {
            name: wanted._replace(labels=self._labels.get(name))
            if wanted.labels is None
            else wanted
            for name, wanted in requested_classifications(message.outputs).items()
        }
        key = (names, tuple(sorted(classes.items())))
        known = self._plans.get(key)
        plan, classes = known or self._plans.remember(key, (self._plan(names, classes), classes))
        given = {tensor.name for tensor in message.inputs}
        return ParsedHead(
            plan,
            classes,
            tuple(
                (
                    tensor.name,
                    tensor.datatype,
                    _reshaped(self._input_reshapes, tensor.name, tensor.shape),
                )
                for tensor in message.inputs
            ),
            tuple(spec.name for spec in self._config.inputs if spec.name not in given),
            batched=self._batched,
        )

    def _plan(self, outputs: Sequence[str], classes: Collection[str]) -> Plan:
        plan = Plan(self._steps, outputs, self.defaults)
        produced = {tensor for step in plan.steps for _, tensor in step.output_map}
        for name in classes:
            if name not in produced:
                raise Unimplemented(
                    f"class result not available for output '{name}' of ensemble"
                    f" '{self._config.name}', which is one of its inputs",
                    accepted=True,
                )
        return plan

    def write_response(
        self,
        parsed: ParsedHead,
        tensors: Sequence[Tensor | None],
        place: SequencePlace,
    ) -> bytes:
        """Return the head of a response; as in Triton, it has a `place` even outside a sequence."""
        shapes = tuple(
            tensor and (tensor.datatype, tensor.shape, tensor.batched) for tensor in tensors
        )
        key = (parsed.plan, shapes, place)
        head = self._responses.get(key)
        if head is None:
            head = self._responses.remember(key, self._write(parsed, tensors, place))
        return head

    def _write(
        self, parsed: ParsedHead, tensors: Sequence[Tensor | None], place: SequencePlace
    ) -> bytes:
        response = kserve_pb2.ModelInferResponse(
            model_name=self._config.name, model_version=str(self._version)
        )
        if any(tensors):
            # As in Triton, only responses with outputs have the place.
            write_parameters(place.parameters(), response.parameters)
        dims = {
            spec.name: spec.dims if spec.reshape is None else spec.reshape
            for spec in self._config.outputs
        }
        for (name, is_classes), tensor in zip(parsed.response_names(), tensors, strict=True):
            if tensor is None:
                continue
            # Classifications have one dimension besides the batch dimension.
            shape = fit_batch_dimension(
                tensor.shape,
                (VARIABLE,) if is_classes else dims[name],
                given=tensor.batched,
                wanted=self._batched,
            )
            if not is_classes:
                shape = _reshaped(self._output_reshapes, name, shape)
            response.outputs.add(name=name, datatype=tensor.datatype, shape=shape)
        return response.SerializeToString()


def _reshaped(reshapes: Mapping[str, Reshape], name: str, shape: Sequence[int]) -> tuple[int, ...]:
    reshape = reshapes.get(name)
    return tuple(shape) if reshape is None else reshape.apply(tuple(shape))


class StepHeads:
    """Write the heads of one step's requests to a model version, and parse the responses."""

    __slots__ = (
        "_batched",
        "_beside",
        "_classes",
        "_dims",
        "_requests",
        "_responses",
        "_uses",
        "model",
        "step",
    )

    def __init__(
        self,
        step: Step,
        model: ModelVersion,
        plan: Plan,
        classes: Mapping[str, Classification],
        max_heads: int = MAX_HEADS,
    ) -> None:
        """classes: requested classifications by output, as in ParsedHead."""
        self.step = step
        self.model = model
        # Key: the model's name for an output. `beside`: the output itself is needed as well.
        self._classes = {
            name: requested._replace(beside=requested.beside or tensor in plan.consumers)
            for name, tensor in step.output_map
            for requested in (classes.get(tensor),)
            if requested is not None
        }
        self._beside = {name for name, requested in self._classes.items() if requested.beside}
        # Number of steps, conditions and responses that need an output.
        self._uses = {
            name: len(plan.consumers.get(tensor, ()))
            + (tensor in plan.conditioned)
            + (tensor in plan.outputs)
            for name, tensor in step.output_map
        }
        self._dims = {spec.name: spec.dims for spec in model.config.inputs}
        self._batched = model.config.max_batch_size > 0
        self._requests: BoundedCache[Hashable, bytes] = BoundedCache(max_heads)
        self._responses: BoundedCache[bytes, _DescribedResponse] = BoundedCache(max_heads)

    def write_request(self, tensors: Mapping[str, Tensor]) -> bytes:
        """Return the head of the request with these inputs."""
        key = tuple(
            [
                (name, tensor.datatype, tensor.shape, tensor.batched)
                for name, tensor in tensors.items()
            ]
        )
        return self._requests.get(key) or self._requests.remember(key, self._write(key))

    def _write(self, inputs: Sequence[_Given]) -> bytes:
        model = self.model
        request = kserve_pb2.ModelInferRequest(model_name=model.name)
        if self.step.version > 0:
            request.model_version = str(self.step.version)
        for name, datatype, shape, batched in inputs:
            dims = self._dims.get(name, ())
            full = fit_batch_dimension(shape, dims, given=batched, wanted=self._batched)
            request.inputs.add(name=name, datatype=datatype, shape=full)
        for name, _ in self.step.output_map:
            output = request.outputs.add(name=name)
            if name in self._classes:
                request_classification(output, self._classes[name])
        return request.SerializeToString()

    def parse_response(
        self, response: InferResponse
    ) -> tuple[dict[str, Tensor], StatedPlace | None]:
        """Return tensors by the model's names, and the stated place, or raise NereidError."""
        try:
            return self._parse(response)
        except (DecodeError, ValueError) as error:
            text = "the executor's response cannot be understood"
            raise Internal(text, accepted=True) from error

    def _parse(self, response: InferResponse) -> tuple[dict[str, Tensor], StatedPlace | None]:
        head = response.head
        known = self._responses.get(head)
        if known is None:
            known = self._responses.remember(head, _describe_response(head))
        described, stated = known
        lease: SegmentLease | None = None
        if response.segment_name:
            names = {name for name, _, _ in described}
            uses = sum(self._uses.get(name, 0) for name in names)
            lease = SegmentLease(response.segment_name, uses)
        tensors: dict[str, Tensor] = {}
        payloads = response.payloads
        if len(payloads) != len(described):
            raise ValueError(f"{len(payloads)} payloads of {len(described)} outputs")
        for (name, datatype, shape), payload in zip(described, payloads):  # noqa: B905 - as many
            tensor = _tensor(datatype, shape, payload, lease, self._batched)
            if datatype == BYTES and name in self._beside and name in tensors:
                tensor = tensors[name]._replace(classes=tensor)
            # If an output comes twice, the last one counts.
            tensors[name] = tensor
        return tensors, stated


def _describe_response(head: bytes) -> _DescribedResponse:
    response = kserve_pb2.ModelInferResponse.FromString(head)
    outputs = tuple(
        (output.name, output.datatype, tuple(output.shape)) for output in response.outputs
    )
    return outputs, stated_place(response.parameters)


def fit_batch_dimension(
    shape: tuple[int, ...], dims: Sequence[int], *, given: bool, wanted: bool
) -> tuple[int, ...]:
    """Add or remove a batch dimension. given, wanted: whether producer and consumer have one.

    The shape alone is no sign, as a model may give a tensor of another rank than declared.
    """
    if wanted and not given and shape_fits(shape, dims):
        return (1, *shape)
    if given and not wanted and shape[:1] == (1,) and not shape_fits(shape, dims):
        return shape[1:]
    return shape
