"""The head of a request: which parts of a ModelInferRequest the services behind share and cache.

Both fronts build heads here, so that the same request over HTTP and gRPC has the same head. What is
derived from a head is remembered by its bytes in a bounded table.
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.datatypes import BYTES
from nereid.core.errors import InvalidArgument
from nereid.core.messages import CLASSIFICATION
from nereid.pb import kserve_pb2
from nereid.services.gateway.string_elements import StringInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nereid.services.gateway.client_shm.regions import RegionUse

# Entries of a table of derived things; past it the table starts anew, which bounds memory without
# the bookkeeping of an LRU on the hot path.
TABLE_LIMIT: Final = 2048
# Longer keys are derived each time, so that a table's memory is bounded as well.
KEY_LIMIT_BYTES: Final = 8192


class CheckedHead(NamedTuple):
    """What one look at a head found."""

    head: bytes
    input_names: tuple[str, ...]
    strings: tuple[StringInput, ...]
    # None: all of its tensors come and go with the request itself.
    regions: RegionUse | None = None


def naming(model: str, version: str) -> bytes:
    """The head that names a model and nothing else; faults travel with it."""
    return kserve_pb2.ModelInferRequest(model_name=model, model_version=version).SerializeToString()


class HeadInput(NamedTuple):
    """One input as a head tells it."""

    name: str
    datatype: str
    shape: list[int]


def build(
    model: str,
    version: str,
    inputs: Iterable[HeadInput],
    outputs: Iterable[str],
    classes: Mapping[str, int] = MappingProxyType({}),
) -> CheckedHead:
    """The head of a request with these inputs that asks for these outputs (none: all), and, of
    outputs in classes, for so many of their best elements.

    Raises:
        InvalidArgument: a shape does not fit the protocol's 64 bits.
    """
    message = kserve_pb2.ModelInferRequest(model_name=model, model_version=version)
    strings = []
    names = []
    for index, (name, datatype, shape) in enumerate(inputs):
        try:
            message.inputs.add(name=name, datatype=datatype, shape=shape)
        except ValueError as error:
            raise InvalidArgument(
                f"the shape of input '{name}' for model '{model}' is out of range"
            ) from error
        names.append(name)
        if datatype == BYTES and all(size >= 0 for size in shape):
            strings.append(StringInput(index, name, model, prod(shape)))
    # Asking twice for one output is asking once, as on Triton.
    for name in dict.fromkeys(outputs):
        output = message.outputs.add(name=name)
        if classes.get(name):
            output.parameters[CLASSIFICATION].int64_param = classes[name]
    return CheckedHead(message.SerializeToString(), tuple(names), tuple(strings))


def remember(table: dict[bytes, CheckedHead], key: bytes, checked: CheckedHead) -> None:
    """Add to a bounded table."""
    if len(key) <= KEY_LIMIT_BYTES:
        if len(table) >= TABLE_LIMIT:
            table.clear()
        table[key] = checked
