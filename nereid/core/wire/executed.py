"""Codec of the last fields of an Executed message, on bytes instead of protobuf's objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from google.protobuf.message import DecodeError

from nereid.core.wire.varint import VarintSequence, decode_varint, encode_varint
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_VARINT: Final = 0


def _tag(number: int) -> int:
    assert number < 16
    return number << 3 | _VARINT


_ID: Final = _tag(pb.Executed.ID_FIELD_NUMBER)
_INPUT: Final = _tag(pb.Executed.COMPUTE_INPUT_NS_FIELD_NUMBER)
_INFER: Final = _tag(pb.Executed.COMPUTE_INFER_NS_FIELD_NUMBER)
_OUTPUT: Final = _tag(pb.Executed.COMPUTE_OUTPUT_NS_FIELD_NUMBER)
_ID_BYTE: Final = bytes((_ID,))
_INPUT_BYTE: Final = bytes((_INPUT,))
_INFER_BYTE: Final = bytes((_INFER,))
_OUTPUT_BYTE: Final = bytes((_OUTPUT,))

_ids: Final = VarintSequence()


class ExecutedTimes:
    """Executed message with only the batch's id and times."""

    __slots__ = ("compute_infer_ns", "compute_input_ns", "compute_output_ns", "id")

    partial: ClassVar[bool] = False
    busy: ClassVar[bool] = False
    responses: ClassVar[Sequence[pb.InferResponse]] = ()
    states: ClassVar[Sequence[pb.SequenceState]] = ()

    def __init__(self, id: int, input_ns: int, infer_ns: int, output_ns: int) -> None:  # noqa: A002
        self.id = id
        self.compute_input_ns = input_ns
        self.compute_infer_ns = infer_ns
        self.compute_output_ns = output_ns


def encode_executed(id: int, input_ns: int, infer_ns: int, output_ns: int) -> bytes:  # noqa: A002
    """Encode a batch's id and the nanoseconds of its phases."""
    return (
        (_ID_BYTE + _ids.encode(id) if id else b"")
        + (_INPUT_BYTE + encode_varint(input_ns))
        + (_INFER_BYTE + encode_varint(infer_ns))
        + (_OUTPUT_BYTE + encode_varint(output_ns))
    )


def read_executed_times(message: bytes, position: int) -> ExecutedTimes | None:
    """Read what encode_executed() wrote; return None if any other bytes follow."""
    try:
        number, position = _read_number(message, position, _ID)
        input_ns, position = _read_number(message, position, _INPUT)
        infer_ns, position = _read_number(message, position, _INFER)
        output_ns, position = _read_number(message, position, _OUTPUT)
    except (DecodeError, IndexError):
        return None
    if position != len(message):
        return None
    return ExecutedTimes(number, input_ns, infer_ns, output_ns)


def _read_number(message: bytes, position: int, tag: int) -> tuple[int, int]:
    if message[position] != tag:
        raise DecodeError("another field")
    return decode_varint(message, position + 1)


Executed = pb.Executed | ExecutedTimes
