"""Place of requests of an ensemble's steps in a sequence.

A step has the place of the ensemble's request, unless the response of an earlier step states
another one in its parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nereid.core.correlation_ids import as_signed
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.core.correlation_ids import CorrelationId
    from nereid.core.wire.messages import Parameter
    from nereid.pb.kserve_pb2 import InferParameter

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"


class SequencePlace(NamedTuple):
    """Place in a sequence. The id is as it came, with its sign; 0 or "" means no sequence."""

    id: CorrelationId = 0
    start: bool = False
    end: bool = False

    def parameters(self) -> dict[str, Parameter]:
        """Return the place as parameters. As in Triton, a number is signed here."""
        number = self.id if isinstance(self.id, str) else as_signed(self.id)
        return {_ID: number, _START: self.start, _END: self.end}


_NOWHERE = SequencePlace()


class StatedPlace(NamedTuple):
    """Place that a step's response states. If it states no id, the step's request has the id."""

    id: CorrelationId | None
    start: bool
    end: bool

    def behind(self, own: SequencePlace) -> SequencePlace:
        """Return the place of the steps after this response. own: place of the responding step."""
        return SequencePlace(own.id if self.id is None else self.id, self.start, self.end)


def place_of(parameters: Mapping[str, Any] | None) -> SequencePlace:
    """Return the place of a request with these parameters. The gateway has checked the types."""
    if not parameters:
        return _NOWHERE
    get = parameters.get
    return SequencePlace(get(_ID, 0), bool(get(_START, False)), bool(get(_END, False)))


def stated_place(parameters: Mapping[str, InferParameter]) -> StatedPlace | None:
    """Return the place that a response states, if any; InvalidArgument with Triton's text."""
    correlation_id: CorrelationId | None = None
    flags = {_START: False, _END: False}
    stated = False
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key == _ID:
            if choice not in {"int64_param", "uint64_param", "string_param"}:
                raise InvalidArgument(
                    f"expected parameter '{_ID}' to be TRITONSERVER_PARAMETER_INT or"
                    " TRITONSERVER_PARAMETER_STRING"
                )
            correlation_id = getattr(parameter, choice)
        elif key in flags:
            if choice != "bool_param":
                raise InvalidArgument(f"expect parameter '{key}' to be TRITONSERVER_PARAMETER_BOOL")
            flags[key] = parameter.bool_param
        else:
            continue
        stated = True
    return StatedPlace(correlation_id, flags[_START], flags[_END]) if stated else None
