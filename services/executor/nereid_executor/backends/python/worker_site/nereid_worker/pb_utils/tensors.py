"""Tensors, which models receive and make."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..protocol.wire import size_of
from ..values.arguments import instance_of, text_of
from ..values.errors import TritonModelException
from . import dlpack
from .datatypes import (
    NUMBERS,
    NUMPY_TYPES,
    datatype_of,
    deserialize_bytes_tensor,
    join_strings,
)

_ARRAY = np.ndarray
# numpy has no BF16, so arrays hold the bits of BF16 numbers in this type.
_BF16_BITS = np.dtype("<u2")
_new = object.__new__


class Tensor:
    """A named tensor in the CPU's memory."""

    __slots__ = ("__weakref__", "_array", "_datatype", "_name", "_raw", "_shape")

    def __init__(self, name: str | bytes, array: Any, /) -> None:
        """Make a tensor from a numpy array; TritonModelException for an unknown dtype.

        `object` and `bytes_` arrays are BYTES, and are serialized at once. Other C-contiguous
        arrays are not copied: later changes of the array change the tensor.
        """
        if type(name) is not str:
            name = text_of(name, "Tensor(): name")
        if not isinstance(array, _ARRAY):
            instance_of(array, _ARRAY, "Tensor(): array")
        if type(array) is not _ARRAY:
            # Subclasses serialize differently: the bytes of a masked array contain fill values.
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
        # Models reuse one array for several tensors.
        self._raw: Any = join_strings(array) if datatype == "BYTES" else None

    @classmethod
    def of_raw(cls, name: str, datatype: str, shape: tuple[int, ...], raw: Any) -> Tensor:
        """Make a tensor from raw bytes.

        A writeable raw is used in place, and must belong to this tensor alone. Otherwise raw is
        copied.
        """
        tensor: Tensor = _new(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._raw = raw
        tensor._array = None
        return tensor

    @staticmethod
    def from_dlpack(name: str, tensor: Any, /) -> Tensor:
        """Make a tensor from a DLPack capsule or exporter; a GPU's tensor is copied to the CPU.

        Raises TritonModelException if the source is consumed or not supported.
        """
        name = text_of(name, "from_dlpack(): name")
        array, is_bf16 = dlpack.array_of(tensor)
        converted = Tensor(name, array)
        if is_bf16:
            converted._datatype = "BF16"
        return converted

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """Return the sizes of all dimensions, including the batch dimension."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """Return Triton's number of the datatype; `triton_to_numpy_type` converts it."""
        return NUMBERS[self._datatype]

    def is_cpu(self) -> bool:
        """Return True: tensors are always in the CPU's memory."""
        return True

    def as_numpy(self) -> Any:
        """Return the tensor's array, which is not a copy; TritonModelException for BF16."""
        if self._datatype == "BF16":
            raise TritonModelException("numpy has no BF16; use DLPack for such a tensor")
        return self._elements()

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule on the CPU; TritonModelException for BYTES.

        The capsule can be consumed once. It shares the tensor's memory, unless that is read-only.
        """
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

    @property
    def datatype(self) -> str:
        """KServe's name of the datatype, such as "FP32"."""
        return self._datatype

    def raw(self) -> Any:
        """Return the tensor's bytes for the wire, as an object with the buffer protocol."""
        if self._raw is not None:
            return self._raw
        return self._array if self._array.size else b""

    def _elements(self) -> Any:
        if self._array is None:
            raw = self._raw
            if self._datatype == "BYTES":
                self._array = deserialize_bytes_tensor(raw).reshape(self._shape)
            else:
                self._array = self._own_array(raw)
                if self._array.size:
                    # The model may change the array, so the array is what is sent from now on.
                    self._raw = self._array
        return self._array

    def _own_array(self, raw: Any) -> Any:
        dtype = _BF16_BITS if self._datatype == "BF16" else NUMPY_TYPES[self._datatype]
        array = _ARRAY(self._shape, dtype, raw)
        size = size_of(raw)
        if array.nbytes != size:
            raise ValueError(f"{size} bytes are no tensor of shape {list(self._shape)}")
        # numpy's flag `behaved` means aligned and writeable.
        return array if array.flags.behaved else array.copy()
