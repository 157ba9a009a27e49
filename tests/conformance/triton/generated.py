"""Hypothesis strategies: infer requests over HTTP and gRPC, whole and damaged.

Left out is what the real server does not survive: huge shapes, batches of zero, classification of
BYTES or of no elements.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import assume
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc
from tests.conformance.grpc_infer import parameter
from tests.conformance.row_models import DATATYPES

_NUMPY: Final = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "<i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "BF16": "<u2",
}  # fmt: skip
_FIELD: Final = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
TEXTS: Final = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


# The real server's JSON parser does not read all digits of others.
DOUBLES: Final = st.one_of(
    st.integers(-(1 << 40), 1 << 40).map(lambda each: each / 8),
    st.sampled_from((float("nan"), float("inf"), float("-inf"), -0.0)),
)


@dataclass(frozen=True)
class Tensor:
    """An input with its elements."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: tuple[Any, ...]

    def raw(self) -> bytes:
        if self.datatype == "BYTES":
            texts = [each.encode() for each in self.elements]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        return np.array(self.elements, _NUMPY[self.datatype]).tobytes()


def elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BYTES":
        return TEXTS
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "FP16":
        return st.floats(width=16)
    if datatype == "FP32":
        return st.floats(width=32)
    if datatype == "FP64":
        return DOUBLES
    info = np.iinfo(_NUMPY[datatype])
    return st.integers(int(info.min), int(info.max))


@st.composite
def tensors(draw: st.DrawFn, name: str, datatype: str, rank: int, batched: bool) -> Tensor:
    least = 1 if batched else 0
    shape = [draw(st.integers(least if axis == 0 else 0, 4)) for axis in range(rank)]
    count = math.prod(shape)
    values = draw(st.lists(elements(datatype), min_size=count, max_size=count))
    return Tensor(name, datatype, tuple(shape), tuple(values))


_KINDS: Final = ("identity", "identity", "matrix", "several", "add_sub")


@st.composite
def inputs(draw: st.DrawFn, fitting: bool = False) -> tuple[str, list[Tensor]]:
    """A model and what it takes; unless fitting, now and then what it does not take."""
    kind = draw(st.sampled_from(_KINDS if fitting else (*_KINDS, "other")))
    if kind == "identity":
        datatype = draw(st.sampled_from(DATATYPES))
        return f"identity_{datatype.lower()}", [draw(tensors("INPUT0", datatype, 2, True))]
    if kind == "matrix":
        datatype = draw(st.sampled_from(("FP32", "BYTES")))
        return f"matrix_{datatype.lower()}", [draw(tensors("INPUT0", datatype, 2, False))]
    if kind == "several":
        found = [
            draw(tensors("A", "INT32", 1, False)),
            draw(tensors("B", "BYTES", 1, False)),
            Tensor("C", "FP64", (2,), tuple(draw(st.tuples(DOUBLES, DOUBLES)))),
        ]
        return "several", draw(st.permutations(found))
    if kind == "add_sub":
        batch = draw(st.integers(1, 3))
        values = st.tuples(*[st.integers(-(1 << 20), 1 << 20)] * 4 * batch)
        found = [Tensor(f"INPUT{each}", "INT32", (batch, 4), draw(values)) for each in range(2)]
        return "add_sub", draw(st.permutations(found))
    datatype = draw(st.sampled_from(DATATYPES))
    model = draw(
        st.sampled_from(("identity_int32", "fixed", "versions", "scalar", "batched", "nope"))
    )
    return model, [draw(tensors("INPUT0", datatype, draw(st.integers(1, 3)), True))]


PARAMETERS: Final = st.dictionaries(
    st.sampled_from(("a", "b", "priority", "timeout", "binary_data_output", "triton_a")),
    st.one_of(st.booleans(), st.integers(1000000, 1 << 62), st.just(0.5), TEXTS),
    max_size=1,
)
VERSIONS: Final = st.sampled_from(("", "", "", "1", "3", "7"))


# --- HTTP ---------------------------------------------------------------------------------------


@st.composite
def nested(draw: st.DrawFn, values: list[Any], shape: tuple[int, ...]) -> Any:
    """The elements flat, by their shape, or in arrays of any lengths."""
    form = draw(st.sampled_from(("flat", "shaped", "mixed")))
    if form == "flat" or not values:
        return values
    if form == "shaped":
        for size in reversed(shape[1:]):
            values = [values[start : start + size] for start in range(0, len(values), size)]
        return values
    found: list[Any] = []
    rest = values
    while rest:
        size = draw(st.integers(0, len(rest)))
        found += [rest[:size]] if size else [rest[0]]
        rest = rest[max(size, 1) :]
    return found


@st.composite
def http_parts(draw: st.DrawFn, fitting: bool = False) -> tuple[str, dict[str, Any], bytes]:
    """A target, a document and what follows it; when fitting, nothing is wrong with them."""
    model, found = draw(inputs(fitting))
    binary = b""
    document: dict[str, Any] = {"inputs": []}
    for tensor in found:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "datatype": tensor.datatype,
        }
        if draw(st.booleans()) or tensor.datatype in {"FP16", "BF16"}:
            entry["parameters"] = {"binary_data_size": len(tensor.raw())}
            binary += tensor.raw()
        else:
            entry["data"] = draw(nested(list(tensor.elements), tensor.shape))
        document["inputs"].append(entry)
    if draw(st.booleans()):
        document["id"] = draw(TEXTS)
    if not fitting and draw(st.booleans()):
        document["parameters"] = draw(PARAMETERS)
    if draw(st.booleans()):
        names = _outputs_of(model, fitting)
        document["outputs"] = draw(st.lists(_http_outputs(names, found), max_size=3))
    version = "" if fitting else draw(VERSIONS)
    middle = f"/versions/{version}" if version else ""
    return f"/v2/models/{model}{middle}/infer", document, binary


@st.composite
def _http_outputs(draw: st.DrawFn, names: list[str], found: list[Tensor]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": draw(st.sampled_from(names))}
    if draw(st.booleans()):
        entry["parameters"] = {"binary_data": draw(st.booleans())}
    elif _classifiable(found) and draw(st.booleans()):
        entry["parameters"] = {"classification": draw(st.integers(1, 5))}
    return entry


def _outputs_of(model: str, fitting: bool) -> list[str]:
    if model == "several":
        return ["A_out", "B_out", "C_out"]
    return ["OUTPUT0"] if fitting and model != "add_sub" else ["OUTPUT0", "OUTPUT1"]


def _classifiable(found: list[Tensor]) -> bool:
    """Whether the real server survives it, and there is an order."""
    return all(
        each.elements
        and each.datatype != "BYTES"
        and not any(isinstance(value, float) and math.isnan(value) for value in each.elements)
        for each in found
    )


def http_request(target: str, document: Any, binary: bytes) -> Http:
    text = json.dumps(document).encode()
    headers = (("Inference-Header-Content-Length", str(len(text))),) if binary else ()
    return Http("POST", target, text + binary, headers)


@st.composite
def http_requests(draw: st.DrawFn) -> Http:
    return http_request(*draw(http_parts()))


_ODD: Final[st.SearchStrategy[Any]] = st.sampled_from(
    (
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        -1,
        1.5,
        "",
        "x",
        "INPUT0",
        "INT32",
        [],
        {},
        [1],
        [[]],
        ["x"],
        {"a": 1},
    )
)


@st.composite
def wrong_documents(draw: st.DrawFn) -> Http:
    """One member somewhere is missing, or is something else."""
    target, document, binary = draw(http_parts(True))
    places = list(_places(document))
    holder, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        del holder[key]
    else:
        holder[key] = draw(_ODD)
    assume(not _unbearable(document))
    return http_request(target, document, binary)


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(pairs):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


@st.composite
def damaged_http(draw: st.DrawFn) -> Http:
    """Bytes cut off, flipped or put in; or another header length."""
    whole = http_request(*draw(http_parts(True)))
    if bool(whole.headers) and draw(st.booleans()):
        length = draw(st.integers(-2, len(whole.body) + 2))
        return replace(whole, headers=((whole.headers[0][0], str(length)),))
    body = draw(damaged(whole.body))
    with contextlib.suppress(ValueError):
        assume(not _unbearable(json.loads(body)))
    return replace(whole, body=body)


def _unbearable(document: Any) -> bool:
    """Whether there is a shape on which the real server may hang."""
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        return any(_hangs(each["shape"]) for each in document["inputs"])
    return False


def _hangs(shape: Any) -> bool:
    return shape[:1] == [0] or any(not 0 <= size < 1 << 20 for size in shape)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    place = draw(st.integers(0, max(0, len(content) - 1)))
    kind = draw(st.sampled_from(("cut", "flip", "insert", "append")))
    if kind == "flip" and content:
        flipped = bytes([content[place] ^ 1 << draw(st.integers(0, 6))])
        return content[:place] + flipped + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    more = draw(st.binary(min_size=1, max_size=4))
    return content + more if kind == "append" else content[:place] + more + content[place:]


# --- gRPC ---------------------------------------------------------------------------------------


@st.composite
def grpc_messages(draw: st.DrawFn, fitting: bool = False) -> pb.ModelInferRequest:
    model, found = draw(inputs(fitting))
    message = pb.ModelInferRequest(model_name=model)
    if not fitting:
        message.model_version = draw(VERSIONS)
    typed = draw(st.booleans()) and not any(each.datatype in {"FP16", "BF16"} for each in found)
    for tensor in found:
        entry = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if typed:
            values = [each.encode() if isinstance(each, str) else each for each in tensor.elements]
            getattr(entry.contents, _FIELD[tensor.datatype]).extend(values)
        else:
            message.raw_input_contents.append(tensor.raw())
    message.id = draw(TEXTS)
    for key, value in ({} if fitting else draw(PARAMETERS)).items():
        kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        message.parameters[key].CopyFrom(parameter(**{kinds[type(value)]: value}))
    if draw(st.booleans()):
        names = _outputs_of(model, fitting)
        for wanted in draw(st.lists(_http_outputs(names, found), max_size=3)):
            output = message.outputs.add(name=wanted["name"])
            count = wanted.get("parameters", {}).get("classification")
            if count:
                output.parameters["classification"].int64_param = count
    return message


@st.composite
def wrong_messages(draw: st.DrawFn) -> Rpc:
    """One thing of a message is changed."""
    message = draw(grpc_messages(True))
    match draw(st.integers(0, 7)):
        case 0:
            message.raw_input_contents.append(draw(st.binary(max_size=8)))
        case 1 if message.raw_input_contents:
            message.raw_input_contents[0] = draw(damaged(message.raw_input_contents[0]))
        case 2:
            message.inputs[0].datatype = draw(st.sampled_from((*DATATYPES, "", "INT33")))
        case 3:
            message.inputs[0].shape.append(draw(st.integers(1, 3)))
        case 4:
            message.inputs.add().CopyFrom(message.inputs[0])
            message.raw_input_contents.extend(message.raw_input_contents[:1])
        case 5:
            field = draw(st.sampled_from(sorted(set(_FIELD.values()))))
            message.inputs[0].contents.ClearField(field)
        case 6:
            del message.inputs[0]
        case _:
            message.inputs[0].name = draw(st.sampled_from(("", "A", "INPUT1", "x")))
    return Rpc("ModelInfer", message)


@st.composite
def damaged_messages(draw: st.DrawFn) -> Rpc:
    content = draw(damaged(draw(grpc_messages(True)).SerializeToString()))
    with contextlib.suppress(DecodeError):
        message = pb.ModelInferRequest.FromString(content)
        assume(not any(_hangs(list(each.shape)) for each in message.inputs))
    return Rpc("ModelInfer", content)
