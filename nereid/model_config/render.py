"""A configuration as clients see it: Triton's JSON of the config response, and the metadata.

Unset fields are included unless protobuf tracks their presence. 64-bit numbers are JSON numbers.
"""

from __future__ import annotations

import json
import math
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.descriptor import FieldDescriptor

from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message

    from nereid.model_config.frozen import InputSpec, ModelConfig, OutputSpec
    from nereid.pb import model_config_pb2

_FLOAT: Final = Struct("<f")
# JSON parsers read numbers as doubles, which hold larger integers inexactly.
_MAX_EXACT: Final = 2**53


def config_json(
    config: model_config_pb2.ModelConfig, sources: Mapping[str, str] | None = None
) -> bytes:
    """Return the HTTP config response, encoded in UTF-8. sources: of fields, if wanted."""
    document = message_json(config)
    if sources is not None:
        document["sources"] = dict(sources)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def metadata(config: ModelConfig, versions: Iterable[int]) -> kserve_pb2.ModelMetadataResponse:
    """Return the metadata response; shapes have the batch dimension if the model batches."""
    batch = [-1] if config.max_batch_size >= 1 else []

    def tensor(
        spec: InputSpec | OutputSpec,
    ) -> kserve_pb2.ModelMetadataResponse.TensorMetadata:
        return kserve_pb2.ModelMetadataResponse.TensorMetadata(
            name=spec.name, datatype=spec.datatype, shape=[*batch, *spec.dims]
        )

    return kserve_pb2.ModelMetadataResponse(
        name=config.name,
        versions=[str(version) for version in versions],
        platform=config.platform or config.backend,
        inputs=map(tensor, config.inputs),
        outputs=map(tensor, config.outputs),
    )


def message_json(message: Message) -> dict[str, Any]:
    """Return any message in the JSON form that Triton's HTTP server uses."""
    fields = cast("list[FieldDescriptor]", message.DESCRIPTOR.fields)
    return {
        field.name: _field_json(field, getattr(message, field.name))
        for field in fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field_json(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        render = _renderer(kind.fields_by_name["value"])
        return {str(key): render(entry) for key, entry in sorted(value.items())}
    render = _renderer(field)
    return [render(entry) for entry in value] if field.is_repeated else render(value)


def _renderer(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return message_json
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else number
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return _float32
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _float64
    return lambda value: value


def _float32(value: float) -> float | str:
    """Return the shortest number that is the same in 32 bits: 0.1, not 0.10000000149011612."""
    if math.isfinite(value):
        for digits in range(6, 9):
            short = float(f"{value:.{digits}g}")
            if abs(short) < 3.4e38 and _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
                return _float64(short)
    return _float64(value)


def _float64(value: float) -> float | str:
    if not math.isfinite(value):
        # These are the names of protobuf's JSON format.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT else value
