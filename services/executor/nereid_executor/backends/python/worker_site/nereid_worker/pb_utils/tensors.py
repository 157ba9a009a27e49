"""Tensors that models get and make."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..protocol.wire import size_of
from . import dlpack
from .arguments import instance_of, text_of
from .datatypes import (
    NUMBERS,
    NUMPY_TYPES,
    datatype_of,
    deserialize_bytes_tensor,
    join_strings,
)
from .errors import TritonModelException

_ARRAY = np.ndarray
# How numpy sees BF16.
_BF16_BITS = np.dtype("<u2")
_new = object.__new__


class Tensor:
    """A named array in the CPU's memory."""

    __slots__ = ("__weakref__", "_array", "_datatype", "_name", "_raw", "_shape")

    def __init__(self, name: str | bytes, array: Any, /) -> None:
        if type(name) is not str:
            name = text_of(name, "Tensor(): name")
        if not isinstance(array, _ARRAY):
            instance_of(array, _ARRAY, "Tensor(): array")
        if type(array) is not _ARRAY:
            # Subclasses have bytes of their own: a masked array has fill values in its.
            array = np.asarray(array)
        datatype = datatype_of(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        self._name = name
        self._datatype = datatype
        self._array = array if array.flags.c_contiguous else array.copy(order="C")
        self._shape = array.shape
        # Serialised at once: models reuse one array of strings for several tensors.
        self._raw: Any = join_strings(array) if datatype == "BYTES" else None

    @classmethod
    def of_raw(cls, name: str, datatype: str, shape: tuple[int, ...], raw: Any) -> Tensor:
        """A tensor that a model is given: of a request, or of another model's response.

        Its array is writeable, aligned and the model's own, and is made on demand. raw: its bytes.
        Memory that can be written to is taken for the tensor's alone; any other is copied first.
        """
        tensor: Tensor = _new(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._raw = raw
        tensor._array = None  # made on demand
        return tensor

    @staticmethod
    def from_dlpack(name: str, tensor: Any, /) -> Tensor:
        """A tensor of a DLPack capsule, or of an object that exports one."""
        name = text_of(name, "from_dlpack(): name")
        array, is_bf16 = dlpack.array_of(tensor)
        made = Tensor(name, array)
        if is_bf16:
            made._datatype = "BF16"
        return made

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        return NUMBERS[self._datatype]

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> Any:
        """The array, in place; strings are bytes objects."""
        if self._datatype == "BF16":
            raise TritonModelException("numpy has no BF16; use DLPack for such a tensor")
        return self._elements()

    def to_dlpack(self) -> Any:
        """A DLPack capsule, which can be consumed once."""
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._datatype == "BF16":
            return dlpack.bf16_capsule(self._elements())
        array = self._elements()
        # A capsule cannot say that its memory is read-only.
        return (array if array.flags.writeable else array.copy()).__dlpack__()

    def __dlpack__(self, **_options: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    # ---- for the worker

    @property
    def datatype(self) -> str:
        return self._datatype

    def raw(self) -> Any:
        """The tensor's bytes on the wire: an object of the buffer protocol."""
        if self._raw is not None:
            return self._raw
        return self._array if self._array.size else b""

    def _elements(self) -> Any:
        """The array; that of BF16 has its bits."""
        if self._array is None:
            raw = self._raw
            if self._datatype == "BYTES":
                self._array = deserialize_bytes_tensor(raw).reshape(self._shape)
            else:
                self._array = self._own_array(raw)
                if self._array.size:
                    # If the tensor is sent on, then with what the model has written.
                    self._raw = self._array
        return self._array

    def _own_array(self, raw: Any) -> Any:
        """An array of its bytes, in place if they are the tensor's own and aligned."""
        dtype = _BF16_BITS if self._datatype == "BF16" else NUMPY_TYPES[self._datatype]
        array = _ARRAY(self._shape, dtype, raw)
        size = size_of(raw)
        if array.nbytes != size:
            raise ValueError(f"{size} bytes are no tensor of shape {list(self._shape)}")
        # Behaved: aligned and writeable.
        return array if array.flags.behaved else array.copy()
