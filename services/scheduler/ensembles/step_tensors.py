"""An ensemble's tensors: out of requests and answers, into the requests of steps and into replies.

Reads and writes heads, never a tensor's content, and remembers both. Knows no queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.core.classification import Classification, classifications, classify_output
from nereid.core.codecs import write_parameters
from nereid.core.datatypes import BYTES
from nereid.core.errors import Internal, Unimplemented
from nereid.pb import kserve_pb2
from nereid.services.scheduler.ensembles.graph import Plan, steps_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from nereid.core.messages import InferResponse, Parameter, Payload
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.ensembles.graph import Step
    from nereid.services.scheduler.models.model_version import ModelVersion

# What clients could send without end is remembered only so far.
_MOST: Final = 1024
_LARGEST_REMEMBERED_BYTES: Final = 4096
_VARIABLE: Final = -1

# What a head says of a tensor: name, datatype, shape.
_Described = tuple[str, str, tuple[int, ...]]


class Loan:
    """An executor's segment that tensors lie in. uses: how often these will still be taken."""

    __slots__ = ("segment_name", "uses")

    def __init__(self, segment_name: str, uses: int) -> None:
        self.segment_name = segment_name
        self.uses = uses


class Tensor(NamedTuple):
    """A tensor on its way through the graph. loan: where it lies, if not in the payload itself.

    classes: its best ones, where both are wanted; where they alone are, they come in its place.
    """

    datatype: str
    shape: tuple[int, ...]
    payload: Payload
    loan: Loan | None = None
    classes: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What requests with one head ask of an ensemble. left_out: optional inputs without a tensor.

    classes: the outputs that are wanted as classes.
    """

    plan: Plan
    classes: Mapping[str, Classification]
    inputs: tuple[_Described, ...]
    left_out: tuple[str, ...]

    def tensors(self, payloads: Sequence[Payload]) -> dict[str, Tensor | None]:
        """The ensemble's tensors that a request brings, with None for what it leaves out."""
        tensors: dict[str, Tensor | None] = dict.fromkeys(self.left_out)
        for (name, datatype, shape), payload in zip(self.inputs, payloads, strict=True):
            tensors[name] = Tensor(datatype, shape, payload)
        return tensors

    def told(self, reply: Sequence[Tensor]) -> Sequence[Tensor]:
        """What a reply tells of these outputs, which are in the plan's order."""
        if not self.classes:
            return reply
        told, beside = [], []
        for name, tensor in zip(self.plan.outputs, reply, strict=True):
            wanted = self.classes.get(name)
            classes = tensor.classes or tensor
            if wanted is not None and wanted.beside:
                beside.append(classes)
            told.append(tensor if wanted is None or wanted.beside else classes)
        return (*told, *beside)

    def names(self) -> list[tuple[str, bool]]:
        """The names of what a reply tells, and whether each is an output's classes."""
        told, beside = [], []
        for name in self.plan.outputs:
            wanted = self.classes.get(name)
            told.append((name, wanted is not None and not wanted.beside))
            if wanted is not None and wanted.beside:
                beside.append((name, True))
        return [*told, *beside]


class EnsembleHeads:
    """Reads an ensemble's requests and writes its replies."""

    def __init__(self, config: ModelConfig, version: int) -> None:
        self._config = config
        self._version = version
        self._steps = steps_of(config.proto.ensemble_scheduling)
        # What the classes of its outputs are called, where not as the steps' models call them. Set
        # before requests come.
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self._asked: dict[bytes, Asked] = {}
        self._plans: dict[Hashable, tuple[Plan, dict[str, Classification]]] = {}
        self._replies: dict[Hashable, bytes] = {}

    def read(self, head: bytes) -> Asked:
        """What a valid request asks for.

        Raises:
            NereidError: this ensemble cannot do that.
        """
        asked = self._asked.get(head)
        if asked is None:
            asked = self._read(head)
            if len(head) <= _LARGEST_REMEMBERED_BYTES:
                _make_room(self._asked)
                self._asked[head] = asked
        return asked

    def _read(self, head: bytes) -> Asked:
        message = kserve_pb2.ModelInferRequest.FromString(head)
        wanted = {output.name for output in message.outputs}
        names = tuple(
            spec.name for spec in self._config.outputs if not wanted or spec.name in wanted
        )
        classes = {
            name: each._replace(labels=self.labels.get(name)) if each.labels is None else each
            for name, each in classifications(message.outputs).items()
        }
        key = (names, tuple(sorted(classes.items())))
        if key not in self._plans:
            _make_room(self._plans)
            self._plans[key] = (self._plan(names, classes), classes)
        plan, classes = self._plans[key]
        given = {tensor.name for tensor in message.inputs}
        return Asked(
            plan,
            classes,
            tuple((each.name, each.datatype, tuple(each.shape)) for each in message.inputs),
            tuple(spec.name for spec in self._config.inputs if spec.name not in given),
        )

    def _plan(self, outputs: Sequence[str], classes: Collection[str]) -> Plan:
        plan = Plan(self._steps, outputs)
        made = {tensor for step in plan.steps for _, tensor in step.outputs}
        for name in classes:
            if name not in made:
                raise Unimplemented(
                    f"class result not available for output '{name}' of ensemble"
                    f" '{self._config.name}', which is one of its inputs",
                    accepted=True,
                )
        return plan

    def reply(
        self,
        asked: Asked,
        tensors: Sequence[Tensor],
        parameters: Mapping[str, Parameter] | None,
    ) -> bytes:
        """The head of a reply that tells these (see Asked.told)."""
        told = _told(parameters)
        shapes = tuple((tensor.datatype, tensor.shape) for tensor in tensors)
        key = (asked.plan, shapes, told)
        head = self._replies.get(key)
        if head is None:
            head = self._write(asked, tensors, dict(told))
            _make_room(self._replies)
            self._replies[key] = head
        return head

    def _write(
        self, asked: Asked, tensors: Sequence[Tensor], parameters: dict[str, Parameter]
    ) -> bytes:
        response = kserve_pb2.ModelInferResponse(
            model_name=self._config.name, model_version=str(self._version)
        )
        write_parameters(parameters, response.parameters)
        dims = {spec.name: spec.dims for spec in self._config.outputs}
        batched = self._config.max_batch_size > 0
        for (name, is_classes), tensor in zip(asked.names(), tensors, strict=True):
            # Of classes there is one dimension for each request of a batch.
            shape = fitted(
                tensor.shape, (_VARIABLE,) if is_classes else dims[name], batched=batched
            )
            response.outputs.add(name=name, datatype=tensor.datatype, shape=shape)
        return response.SerializeToString()


def _told(parameters: Mapping[str, Parameter] | None) -> tuple[tuple[str, Parameter], ...]:
    """As on Triton, a reply says where in a sequence its request was, even if in none."""
    given = parameters or {}
    return (
        ("sequence_id", given.get("sequence_id", 0)),
        ("sequence_start", given.get("sequence_start", False)),
        ("sequence_end", given.get("sequence_end", False)),
    )


class StepForm:
    """The form of one step's requests and answers, while one version of its model runs it."""

    __slots__ = ("_beside", "_classes", "_dims", "_heads", "_outputs", "_uses", "model", "step")

    def __init__(self, step: Step, model: ModelVersion, asked: Asked) -> None:
        self.step = step
        self.model = model
        # The classes that are wanted, by the model's names; of some the tensor is wanted as well.
        consumers = asked.plan.consumers
        self._classes = {
            name: wanted._replace(beside=wanted.beside or tensor in consumers)
            for name, tensor in step.outputs
            for wanted in (asked.classes.get(tensor),)
            if wanted is not None
        }
        self._beside = {name for name, wanted in self._classes.items() if wanted.beside}
        # How often each of the step's outputs is taken: by further steps, and into the reply.
        plan = asked.plan
        self._uses = {
            name: len(plan.consumers.get(tensor, ())) + (tensor in plan.outputs)
            for name, tensor in step.outputs
        }
        self._dims = {spec.name: spec.dims for spec in model.config.inputs}
        self._heads: dict[Hashable, bytes] = {}
        self._outputs: dict[bytes, tuple[_Described, ...]] = {}

    def head(self, tensors: Mapping[str, Tensor]) -> bytes:
        """The head of the request with these inputs."""
        key = tuple((name, each.datatype, each.shape) for name, each in tensors.items())
        head = self._heads.get(key)
        if head is None:
            head = self._write(key)
            _make_room(self._heads)
            self._heads[key] = head
        return head

    def _write(self, inputs: Sequence[_Described]) -> bytes:
        model = self.model
        request = kserve_pb2.ModelInferRequest(model_name=model.name)
        if self.step.version > 0:
            request.model_version = str(self.step.version)
        batched = model.config.max_batch_size > 0
        for name, datatype, shape in inputs:
            full = fitted(shape, self._dims.get(name, ()), batched=batched)
            request.inputs.add(name=name, datatype=datatype, shape=full)
        for name, _ in self.step.outputs:
            output = request.outputs.add(name=name)
            if name in self._classes:
                classify_output(output, self._classes[name])
        return request.SerializeToString()

    def outputs(self, wire_response: InferResponse) -> dict[str, Tensor]:
        """The tensors that an answer without an error brings, by the model's names.

        Raises:
            Internal: it makes no sense.
        """
        try:
            return self._read(wire_response)
        except (DecodeError, ValueError) as error:
            text = "the executor's answer cannot be understood"
            raise Internal(text, accepted=True) from error

    def _read(self, wire_response: InferResponse) -> dict[str, Tensor]:
        described = self._outputs.get(wire_response.head)
        if described is None:
            described = _described(wire_response.head)
            _make_room(self._outputs)
            self._outputs[wire_response.head] = described
        loan = None
        if wire_response.segment_name:
            names = {name for name, _, _ in described}
            loan = Loan(wire_response.segment_name, sum(self._uses.get(name, 0) for name in names))
        tensors: dict[str, Tensor] = {}
        for (name, datatype, shape), payload in zip(described, wire_response.payloads, strict=True):
            tensor = Tensor(datatype, shape, payload, loan)
            if datatype == BYTES and name in self._beside and name in tensors:
                tensor = tensors[name]._replace(classes=tensor)
            # Of an output that came twice the last one counts.
            tensors[name] = tensor
        return tensors


def _described(head: bytes) -> tuple[_Described, ...]:
    response = kserve_pb2.ModelInferResponse.FromString(head)
    return tuple((each.name, each.datatype, tuple(each.shape)) for each in response.outputs)


def fitted(shape: tuple[int, ...], dims: Sequence[int], *, batched: bool) -> tuple[int, ...]:
    """A shape for a model that has a batch dimension while the tensor has none, or the reverse."""
    if batched and _match(shape, dims):
        return (1, *shape)
    if not batched and shape[:1] == (1,) and _match(shape[1:], dims):
        return shape[1:]
    return shape


def _match(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(
        want in (_VARIABLE, got) for got, want in zip(shape, dims, strict=True)
    )


def _make_room(table: dict[Any, Any]) -> None:
    if len(table) >= _MOST:
        table.clear()
