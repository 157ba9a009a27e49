"""Implicit state of models that execute requests one by one, such as Python models.

A state is an additional input of the request, and an output that becomes the input of the next one.
If a response lacks the output, the state stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from nereid.backends import RequestSpec
from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import format_shape, shape_fits
from nereid.core.tensors.tensors import from_raw, to_raw
from nereid.core.wire.messages import error_status_of
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_executor.batch.sequence_states import SequenceStates, state_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from nereid.backends import Request, Response
    from nereid.pb import model_config_pb2
    from nereid_executor.batch.batch_reader import BatchRequest
    from nereid_executor.batch.sequence_states import StateSpec

    ReadRequest = Callable[[BatchRequest, SharedMemory | None], Request]

# States may have any number of different shapes.
_MAX_SPECS = 1024


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    raw: bytes


class MemberState(NamedTuple):
    """State of a member's sequence. The responses to the member change it."""

    # Empty if the sequence's state is lost.
    tensors: list[_Tensor]
    # Outputs that the client requested.
    outputs: tuple[str, ...]
    # Slot for which the scheduler wants the state; 0 if it does not want it.
    returned_slot: int = 0


class RequestStates:
    """States of one model's sequences. Only the instance's thread uses them."""

    def __init__(self, config: model_config_pb2.ModelConfig, model_path: Path) -> None:
        """Raise InvalidArgument if the initial value of a state cannot be read."""
        self._model_name = config.name
        self._batch_dims = (1,) if config.max_batch_size > 0 else ()
        self._states = list(config.sequence_batching.state)
        specs = state_specs(config, model_path)
        initial = [self._tensor(spec.initial.shape, to_raw(spec.initial)) for spec in specs]
        self.table = SequenceStates(config.name, specs, initial, self._read, self._write)
        self._places = {state.output_name: index for index, state in enumerate(self._states)}
        self._specs: BoundedCache[tuple[RequestSpec, tuple[tuple[int, ...], ...]], RequestSpec]
        self._specs = BoundedCache(_MAX_SPECS)

    def _tensor(self, shape: tuple[int, ...], raw: bytes) -> _Tensor:
        return _Tensor((*self._batch_dims, *shape), raw)

    def _read(self, spec: StateSpec, tensor: pb.StateTensor) -> _Tensor:
        shape = tuple(tensor.shape)
        from_raw(tensor.data, spec.datatype, shape)
        return self._tensor(shape, tensor.data)

    def _write(self, tensor: _Tensor) -> pb.StateTensor:
        return pb.StateTensor(shape=tensor.shape[len(self._batch_dims) :], data=tensor.raw)

    def read_request(
        self,
        member: pb.BatchMember,
        received: BatchRequest,
        buffer: SharedMemory | None,
        read: ReadRequest,
    ) -> tuple[Request, MemberState]:
        """Return a request with its sequence's state as additional inputs, and the state.

        member, received: the request as it came, parsed and read.

        Raises Unavailable if the state is not on this instance, Internal for an unreadable member.
        """
        # This comes first, because even a member that cannot be read begins its sequence.
        tensors = self.table.begin(member)
        request = read(received, buffer)
        spec = self._spec_with(request.spec, tuple(tensor.shape for tensor in tensors))
        raws = [*request.tensors, *(tensor.raw for tensor in tensors)]
        stateful = request._replace(spec=spec, tensors=raws)
        returned_slot = member.sequence_slot if member.returns_state else 0
        return stateful, MemberState(tensors, request.spec.outputs, returned_slot)

    def keep(self, response: Response, member: MemberState) -> Response:
        """Store the states in a response; return the response with the client's outputs alone."""
        if response.error_status is not None or not response.head:
            return response
        try:
            return self._keep(response, member)
        except (Internal, DecodeError) as error:
            if isinstance(error, DecodeError):
                error = Internal("the model's response cannot be understood", accepted=True)
            return response._replace(error_status=error_status_of(error), head=b"", tensors=())

    def _keep(self, response: Response, member: MemberState) -> Response:
        head = kserve_pb2.ModelInferResponse.FromString(response.head)
        for output, raw in zip(head.outputs, response.tensors, strict=True):
            place = self._places.get(output.name)
            if place is not None:
                self._check(place, output)
                assert not isinstance(raw, SharedMemory), "an output in a buffer of no request"
                # The state is copied, because the response's memory will be reused.
                member.tensors[place] = _Tensor(tuple(output.shape), bytes(raw))
        wanted = member.outputs
        shown = [index for index, output in enumerate(head.outputs) if output.name in wanted]
        if len(shown) == len(head.outputs):
            return response
        outputs = [head.outputs[index] for index in shown]
        del head.outputs[:]
        head.outputs.extend(outputs)
        raws = [response.tensors[index] for index in shown]
        return response._replace(head=head.SerializeToString(), tensors=raws)

    def _check(self, place: int, output: kserve_pb2.ModelInferResponse.InferOutputTensor) -> None:
        state = self._states[place]
        datatype = NAME_OF_CONFIG_NUMBER[state.data_type]
        dims = [*self._batch_dims, *state.dims]
        if output.datatype != datatype or not shape_fits(output.shape, dims):
            raise Internal(
                f"model '{self._model_name}' returned the state '{output.name}' as"
                f" {output.datatype} of shape {format_shape(output.shape)}, but its configuration"
                f" says {datatype} of shape {format_shape(dims)}",
                accepted=True,
            )

    def _spec_with(self, spec: RequestSpec, shapes: tuple[tuple[int, ...], ...]) -> RequestSpec:
        key = spec, shapes
        return self._specs.get(key) or self._specs.remember(key, self._make_spec(spec, shapes))

    def _make_spec(self, spec: RequestSpec, shapes: Sequence[tuple[int, ...]]) -> RequestSpec:
        states = [
            (state.input_name, NAME_OF_CONFIG_NUMBER[state.data_type], shape)
            for state, shape in zip(self._states, shapes, strict=True)
        ]
        outputs = dict.fromkeys((*spec.outputs, *self._places))
        return RequestSpec((*spec.inputs, *states), tuple(outputs), spec.classes)

    def return_states(self, members: Iterable[MemberState], reply: pb.Executed) -> None:
        """Add the states that the scheduler wants together with responses, as far as they fit."""
        wanted = (
            (member.returned_slot, member.tensors) for member in members if member.returned_slot
        )
        self.table.return_states(wanted, reply)
