"""Tensors that models get and make."""

from __future__ import annotations

from typing import Any

import numpy as np

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
_new = object.__new__


class Tensor:
    """A named array in the CPU's memory."""

    __slots__ = ("__weakref__", "_array", "_datatype", "_name", "_raw", "_shape")

    def __init__(self, name: str | bytes, array: Any, /) -> None:
        if type(name) is not str:
            name = text_of(name, "Tensor(): name")
        if not isinstance(array, _ARRAY):
            instance_of(array, _ARRAY, "Tensor(): array")
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
        """A tensor whose bytes become an array on demand."""
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
        if self._array is None:
            self._array = self._viewed()
        return self._array

    def to_dlpack(self) -> Any:
        """A DLPack capsule, which can be consumed once."""
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._datatype == "BF16":
            return dlpack.bf16_capsule(self._words())
        return self.as_numpy().__dlpack__()

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

    def _viewed(self) -> Any:
        raw = self._raw
        if self._datatype == "BYTES":
            return deserialize_bytes_tensor(raw).reshape(self._shape)
        array = _ARRAY(self._shape, NUMPY_TYPES[self._datatype], raw)
        if array.nbytes != len(raw):
            raise ValueError(f"{len(raw)} bytes are no tensor of shape {list(self._shape)}")
        return array

    def _words(self) -> Any:
        if self._array is not None:
            return self._array
        return np.frombuffer(self._raw, np.uint16).reshape(self._shape)
