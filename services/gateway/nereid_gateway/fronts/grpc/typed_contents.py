"""Conversion of a gRPC request's typed contents to raw bytes, with Triton's rules and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.datatypes import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.pb import kserve_pb2

    Input = kserve_pb2.ModelInferRequest.InferInputTensor

# Each entry: a field of InferTensorContents, Triton's name of it, and the datatypes that it may
# carry. Triton checks the fields in this order.
_FIELDS: Final = (
    ("bool_contents", "BOOL", frozenset({"BOOL"})),
    ("int_contents", "INT32", frozenset({"INT8", "INT16", "INT32"})),
    ("int64_contents", "INT64", frozenset({"INT64"})),
    ("uint_contents", "UINT32", frozenset({"UINT8", "UINT16", "UINT32"})),
    ("uint64_contents", "UINT64", frozenset({"UINT64"})),
    ("fp32_contents", "FP32", frozenset({"FP32"})),
    ("fp64_contents", "FP64", frozenset({"FP64"})),
    ("bytes_contents", "BYTES", frozenset({"BYTES"})),
)
_WIDE: Final = {"int_contents": "INT32", "uint_contents": "UINT32"}


def to_raw(tensor: Input, model: str) -> bytes:
    """Return the raw form of a typed input. Empty contents are a tensor without elements.

    Raises InvalidArgument if the contents are missing or do not match the datatype.
    """
    if not tensor.HasField("contents"):
        raise InvalidArgument(
            f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request."
        )
    contents, raw, has_contents = tensor.contents, b"", False
    for field, kind, datatypes in _FIELDS:
        values = getattr(contents, field)
        if not values:
            continue
        if has_contents:
            raise InvalidArgument(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model"
                f" '{model}', binary data was already supplied."
            )
        has_contents = True
        if tensor.datatype not in datatypes:
            expected = tensor.datatype if tensor.datatype in NAMES else "<invalid>"
            raise InvalidArgument(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model"
                f" '{model}' of type '{kind}', expected datatype '{expected}'"
            )
        if kind == "BYTES":
            raw = join_bytes(values)
        else:
            raw = _numbers(values, _WIDE.get(field, tensor.datatype), tensor.datatype)
    return raw


def _numbers(values: Sequence[float], wide: str, datatype: str) -> bytes:
    """Return numbers as raw bytes. As on Triton, values out of range of narrow integers wrap."""
    # A gateway starts without NumPy (core.deferred_imports).
    import numpy as np  # noqa: PLC0415

    from nereid.core.tensors.tensors import NUMPY_TYPE  # noqa: PLC0415

    return np.array(values, NUMPY_TYPE[wide]).astype(NUMPY_TYPE[datatype]).tobytes()
