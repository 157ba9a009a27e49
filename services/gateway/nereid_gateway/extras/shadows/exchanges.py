"""Copied requests with the bytes of both responses, as they go to the process that compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.comparison.responses import Exchange, Failure, Response, Tensor
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class RawResponse(NamedTuple):
    """One response. error: gRPC status code and message, or `None`."""

    head: bytes
    payloads: Sequence[bytes]
    error: tuple[int, str] | None = None


class Reply(NamedTuple):
    """All responses to one request, and the seconds until the last one."""

    responses: Sequence[RawResponse]
    latency_s: float


class CopiedRequest(NamedTuple):
    """Request as a client has sent it. parameters: without those of sequences' order."""

    model: str
    head: bytes
    payloads: Sequence[bytes]
    request_id: str
    parameters: dict[str, Any]


class CopiedExchange(NamedTuple):
    """Request with the responses of the model and of its shadow."""

    request: CopiedRequest
    old: Reply
    new: Reply


class CopyToServer(NamedTuple):
    """Request that the process itself sends to another server."""

    request: CopiedRequest
    old: Reply


class SetShadows(NamedTuple):
    """Shadows by model, as JSON. Counts of a model begin anew when its shadow changes."""

    shadows: dict[str, str]


class NotCompared(NamedTuple):
    """Number of copies of a model that have no response, with the reason."""

    model: str
    reason: str
    number: int


class CountsQuestion(NamedTuple):
    """Question for the counts of all models."""


class ModelQuestion(NamedTuple):
    """Question for the report of one model."""

    model: str


class ModelCounts(NamedTuple):
    """Counts of a model. kinds: differences by kind. not_compared: by reason."""

    compared: int
    differing: int
    kinds: dict[str, int]
    not_compared: dict[str, int]


# Parameters of a response that say nothing about the model. Those of ensembles have the sequence's.
_OWN_PARAMETERS: Final = frozenset(
    {"sequence_end", "sequence_id", "sequence_start", "triton_final_response"}
)


def exchange_of(request: CopiedRequest, old: Reply, new: Reply) -> Exchange:
    """Return an exchange to compare. Raises DecodeError or ValueError for damaged bytes."""
    message = kserve_pb2.ModelInferRequest.FromString(request.head)
    return Exchange(
        request.model,
        dict(_tensors(message.inputs, request.payloads)),
        [_response_of(response) for response in old.responses],
        [_response_of(response) for response in new.responses],
        old.latency_s,
        new.latency_s,
        request.request_id,
    )


def _response_of(raw: RawResponse) -> Response:
    if raw.error is not None:
        code, text = raw.error
        return Response(failure=Failure(str(code), text))
    message = kserve_pb2.ModelInferResponse.FromString(raw.head)
    fields = {
        name: str(getattr(value, value.WhichOneof("parameter_choice") or "", ""))
        for name, value in message.parameters.items()
        if name not in _OWN_PARAMETERS
    }
    return Response(dict(_tensors(message.outputs, raw.payloads)), fields=fields)


def _tensors(described: Iterable[Any], payloads: Sequence[bytes]) -> Iterable[tuple[str, Tensor]]:
    for tensor, raw in zip(described, payloads, strict=True):
        yield tensor.name, Tensor(tensor.datatype, tuple(tensor.shape), raw)
