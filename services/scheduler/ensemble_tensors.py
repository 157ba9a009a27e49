"""An ensemble's tensors: out of requests and answers, into the requests of steps and into replies.

Reads and writes heads, never a tensor's content, and remembers both. Knows no queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.errors import Internal, Unimplemented
from nereid.frames import write_parameters
from nereid.messages import CLASSIFICATION
from nereid.pb import kserve_pb2
from services.scheduler.ensemble_graph import Plan, steps_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from nereid.messages import Answer, Parameter, Payload
    from nereid.model_config import ModelConfig
    from services.scheduler.ensemble_graph import Step
    from services.scheduler.model import ModelVersion

# What clients could send without end is remembered only so far.
_MOST: Final = 1024
_LARGEST_REMEMBERED_BYTES: Final = 4096
_VARIABLE: Final = -1

# What a head says of a tensor: name, datatype, shape.
_Described = tuple[str, str, tuple[int, ...]]


class Loan:
    """An executor's segment that tensors lie in. uses: how often these will still be taken."""

    __slots__ = ("slab", "uses")

    def __init__(self, slab: str, uses: int) -> None:
        self.slab = slab
        self.uses = uses


class Tensor(NamedTuple):
    """A tensor on its way through the graph. loan: where it lies, if not in the payload itself."""

    datatype: str
    shape: tuple[int, ...]
    payload: Payload
    loan: Loan | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What requests with one head ask of an ensemble. left_out: optional inputs without a tensor.

    classes: how many of its best classes are wanted of an output, instead of the output.
    """

    plan: Plan
    classes: Mapping[str, int]
    inputs: tuple[_Described, ...]
    left_out: tuple[str, ...]

    def tensors(self, payloads: Sequence[Payload]) -> dict[str, Tensor | None]:
        """The ensemble's tensors that a request brings, with None for what it leaves out."""
        tensors: dict[str, Tensor | None] = dict.fromkeys(self.left_out)
        for (name, datatype, shape), payload in zip(self.inputs, payloads, strict=True):
            tensors[name] = Tensor(datatype, shape, payload)
        return tensors


class EnsembleHeads:
    """Reads an ensemble's requests and writes its replies."""

    def __init__(self, config: ModelConfig, version: int) -> None:
        self._config = config
        self._version = version
        self._steps = steps_of(config.proto.ensemble_scheduling)
        self._asked: dict[bytes, Asked] = {}
        self._plans: dict[Hashable, tuple[Plan, dict[str, int]]] = {}
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
        wanted = {output.name: output for output in message.outputs}
        names = tuple(
            spec.name for spec in self._config.outputs if not wanted or spec.name in wanted
        )
        classes = {
            name: output.parameters[CLASSIFICATION].int64_param
            for name, output in wanted.items()
            if CLASSIFICATION in output.parameters
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
        for name in classes:
            if name in plan.consumers:
                raise Unimplemented(
                    f"class result not available for output '{name}' of ensemble"
                    f" '{self._config.name}', which is an input of its steps as well",
                    late=True,
                )
        return plan

    def reply(
        self,
        asked: Asked,
        tensors: Sequence[Tensor],
        parameters: Mapping[str, Parameter] | None,
    ) -> bytes:
        """The head of a reply with these outputs, in the plan's order."""
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
        for name, tensor in zip(asked.plan.outputs, tensors, strict=True):
            shape = tensor.shape
            if name not in asked.classes:
                shape = fitted(shape, dims[name], batched=batched)
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

    __slots__ = ("_classes", "_dims", "_heads", "_outputs", "_uses", "model", "step")

    def __init__(self, step: Step, model: ModelVersion, asked: Asked) -> None:
        self.step = step
        self.model = model
        self._classes = asked.classes
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
        for name, tensor in self.step.outputs:
            output = request.outputs.add(name=name)
            if tensor in self._classes:
                output.parameters[CLASSIFICATION].int64_param = self._classes[tensor]
        return request.SerializeToString()

    def outputs(self, answer: Answer) -> dict[str, Tensor]:
        """The tensors that an answer without an error brings, by the model's names.

        Raises:
            Internal: it makes no sense.
        """
        try:
            return self._read(answer)
        except (DecodeError, ValueError) as error:
            text = "the executor's answer cannot be understood"
            raise Internal(text, late=True) from error

    def _read(self, answer: Answer) -> dict[str, Tensor]:
        described = self._outputs.get(answer.head)
        if described is None:
            described = _described(answer.head)
            _make_room(self._outputs)
            self._outputs[answer.head] = described
        loan = None
        if answer.slab:
            loan = Loan(answer.slab, sum(self._uses.get(name, 0) for name, _, _ in described))
        return {
            name: Tensor(datatype, shape, payload, loan)
            for (name, datatype, shape), payload in zip(described, answer.payloads, strict=True)
        }


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
