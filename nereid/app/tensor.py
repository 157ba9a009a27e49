"""Type of a model's input or output, as an annotation or a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

import numpy as np

from nereid.core.tensors import datatypes

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    **{
        name: np.dtype(name.lower().replace("fp", "float"))
        for name in datatypes.NAMES - {datatypes.BYTES, "BF16"}
    },
    datatypes.BYTES: np.dtype(object),
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_SCALARS: Final = (str, bytes, bool, int, float)
EXAMPLE: Final = 'nereid.Tensor["float32", -1]'


@dataclass(frozen=True)
class Tensor:
    """Datatype and dimensions of an input or output, without the batch dimension; -1: any size.

    `Tensor["float32", -1]` annotates, `Tensor("float32", -1)` is a value. The datatype is one of
    numpy's, `str` or `bytes` (BYTES), or KServe's name.
    """

    datatype: str
    dims: tuple[int, ...]
    # The function has str where the protocol has BYTES.
    is_text: bool = False
    # The function has a Python value; the protocol has one element.
    is_scalar: bool = False
    is_optional: bool = False

    def __init__(self, dtype: Any, *dims: int) -> None:
        """Raise TypeError if there is no such datatype, or a dimension is none."""
        datatype, is_text = _datatype(dtype)
        for dim in dims:
            if not isinstance(dim, int) or isinstance(dim, bool) or dim < -1 or dim == 0:
                raise TypeError(f"{dim!r} is no dimension: write a number, or -1 for any size")
        object.__setattr__(self, "datatype", datatype)
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "is_text", is_text)

    def __class_getitem__(cls, item: Any) -> Any:
        """Return an annotation."""
        items = item if isinstance(item, tuple) else (item,)
        return Annotated[np.ndarray, cls(*items)]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Datatype of numpy; object for BYTES."""
        return DTYPES[self.datatype]

    def describe(self, *rows: int) -> str:
        """Return datatype and shape for an error's text."""
        name = ("str" if self.is_text else "bytes") if self.dtype == object else self.dtype.name
        return f"{name} {[*rows, *(() if self.is_scalar else self.dims)]}"

    def as_optional(self) -> Tensor:
        """Return the type of an input that requests may leave out."""
        return _replaced(self, is_optional=True)


def _replaced(tensor: Tensor, **changes: bool) -> Tensor:
    copy = Tensor(tensor.datatype, *tensor.dims)
    for name in ("is_text", "is_scalar", "is_optional"):
        object.__setattr__(copy, name, changes.get(name, getattr(tensor, name)))
    return copy


def tensor_of(annotation: Any) -> Tensor:
    """Return the type that an annotation or a given value states; raise TypeError with advice."""
    if isinstance(annotation, Tensor):
        return annotation
    if get_origin(annotation) is Annotated:
        for part in get_args(annotation)[1:]:
            if isinstance(part, Tensor):
                return part
    if annotation in _SCALARS:
        return _replaced(Tensor(annotation, 1), is_scalar=True)
    raise TypeError(f"{_name(annotation)} says no datatype and dimensions: write {EXAMPLE}")


def _datatype(dtype: Any) -> tuple[str, bool]:
    """Return KServe's name of a datatype, and whether its elements are str."""
    if isinstance(dtype, str) and dtype.upper() in DTYPES:
        return dtype.upper(), False
    if dtype in ("bytes", "object"):
        return datatypes.BYTES, False
    try:
        parsed = np.dtype(dtype)
    except TypeError:
        raise TypeError(
            f"{dtype!r} is no datatype: write one of {', '.join(_dtype_names())}"
        ) from None
    if parsed.kind in "USO":
        return datatypes.BYTES, parsed.kind == "U"
    name = _NAMES.get(parsed)
    if name is None:
        raise TypeError(
            f"{parsed.name} is no datatype of models: write one of {', '.join(_dtype_names())}"
        )
    return name, False


def _dtype_names() -> list[str]:
    return [*sorted({dtype.name for dtype in _NAMES} - {"object"}), "str", "bytes"]


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
