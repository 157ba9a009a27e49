"""Differences between the responses of two servers, found by rules."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nereid.comparison.rules import Cosine, Ignore, Text, Tolerance, TopK, format_rule
from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import BYTES, element_count
from nereid.core.tensors.tensors import NUMPY_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nereid.comparison.responses import Response, Tensor
    from nereid.comparison.rules import Rule, TensorRules
    from nereid.core.tensors.tensors import Array

_MAX_SHOWN: Final = 200


class Kind(StrEnum):
    """Kind of a difference."""

    STATUS = "status"
    ERROR_TEXT = "error text"
    MISSING = "missing output"
    EXTRA = "extra output"
    DATATYPE = "datatype"
    SHAPE = "shape"
    VALUE = "value"
    FIELD = "field"
    COUNT = "number of responses"
    ORDER = "order of responses"


class Difference(NamedTuple):
    """Difference of one kind. name: of the output or field; "" for the response as a whole.

    measure: the distance by the rule: the largest absolute difference of numbers, 1 - cosine, or
    the share of elements that differ. 1 for kinds without a distance.
    """

    kind: Kind
    name: str
    text: str
    measure: float = 1.0


def compare_responses(rules: TensorRules, old: Response, new: Response) -> list[Difference]:
    """Return the differences of one response."""
    if old.failure is not None or new.failure is not None:
        return list(_compare_failures(old, new))
    found = []
    for name, tensor in old.outputs.items():
        other = new.outputs.get(name)
        if other is None:
            found.append(Difference(Kind.MISSING, name, "only the old response has it"))
        elif (difference := _compare_tensors(rules, name, tensor, other)) is not None:
            found.append(difference)
    found += (
        Difference(Kind.EXTRA, name, "only the new response has it")
        for name in new.outputs
        if name not in old.outputs
    )
    for name in sorted({*old.fields, *new.fields}):
        values = old.fields.get(name, ""), new.fields.get(name, "")
        if values[0] != values[1] and not isinstance(rules.rule_of(name, ""), Ignore):
            found.append(Difference(Kind.FIELD, name, _change(*values)))
    return found


def compare_streams(
    rules: TensorRules, old: Sequence[Response], new: Sequence[Response]
) -> list[Difference]:
    """Return the differences of all responses to one request, one of each kind and name.

    Responses that both servers sent in another order are one difference of order.
    """
    pairs = [(index, *pair) for index, pair in enumerate(zip(old, new, strict=False))]
    unequal = [
        (index, differences)
        for index, *pair in pairs
        if (differences := compare_responses(rules, *pair))
    ]
    worst: dict[tuple[Kind, str], Difference] = {}
    if len(unequal) > 1 and _are_reordered(rules, old, new, [index for index, _ in unequal]):
        text = f"{len(unequal)} responses are in another order"
        worst[Kind.ORDER, ""] = Difference(Kind.ORDER, "", text)
    else:
        for _, differences in unequal:
            for difference in differences:
                key = difference.kind, difference.name
                if key not in worst or difference.measure > worst[key].measure:
                    worst[key] = difference
    if len(old) != len(new):
        text = f"{len(old)} of the old server, {len(new)} of the new one"
        worst[Kind.COUNT, ""] = Difference(Kind.COUNT, "", text)
    return list(worst.values())


# A longer stream whose order differs counts as one with different values.
_MAX_REORDERED: Final = 256


def _are_reordered(
    rules: TensorRules, old: Sequence[Response], new: Sequence[Response], places: list[int]
) -> bool:
    if len(places) > _MAX_REORDERED:
        return False
    left = [new[place] for place in places]
    for place in places:
        equal = next(
            (i for i, other in enumerate(left) if not compare_responses(rules, old[place], other)),
            None,
        )
        if equal is None:
            return False
        del left[equal]
    return True


def _compare_failures(old: Response, new: Response) -> Iterator[Difference]:
    statuses = [
        "success" if response.failure is None else response.failure.status
        for response in (old, new)
    ]
    messages = [
        "" if response.failure is None else response.failure.message for response in (old, new)
    ]
    if statuses[0] != statuses[1]:
        text = ": ".join(filter(None, (_change(*statuses), next(filter(None, messages), ""))))
        yield Difference(Kind.STATUS, "", text[:_MAX_SHOWN])
    elif messages[0] != messages[1]:
        yield Difference(Kind.ERROR_TEXT, "", _change(*messages))


def _compare_tensors(rules: TensorRules, name: str, old: Tensor, new: Tensor) -> Difference | None:
    rule = rules.rule_of(name, old.datatype)
    if isinstance(rule, Ignore):
        return None
    if old.datatype != new.datatype:
        return Difference(Kind.DATATYPE, name, _change(old.datatype, new.datatype))
    if old.shape != new.shape:
        return Difference(Kind.SHAPE, name, _change(list(old.shape), list(new.shape)))
    if old.raw == new.raw:
        return None
    try:
        elements = _elements(old), _elements(new)
    except InvalidArgument as error:
        return Difference(Kind.VALUE, name, f"not the bytes of a tensor: {error.message}")
    sizes = [array.size for array in elements]
    if sizes != [element_count(old.shape)] * 2:
        return Difference(Kind.VALUE, name, f"number of elements: {_change(*sizes)}")
    text, measure = _distance(rule, old, *elements)
    return Difference(Kind.VALUE, name, text, measure) if text else None


def _distance(rule: Rule, tensor: Tensor, old: Array, new: Array) -> tuple[str, float]:
    """Return what differs, or "" for nothing, and the distance by the rule."""
    if old.dtype == object:
        return _text_distance(rule, old, new)
    old, new = old.astype(np.float64), new.astype(np.float64)
    with np.errstate(all="ignore"):
        match rule:
            case Tolerance():
                return _number_distance(rule, old, new)
            case Cosine():
                return _cosine_distance(rule, *_rows(tensor, old, new))
            case TopK():
                return _top_k_distance(rule, *_rows(tensor, old, new))
            case _:
                return _exact_distance(tensor, old, new)


def _text_distance(rule: Rule, old: Array, new: Array) -> tuple[str, float]:
    normalize = _normalized if isinstance(rule, Text) else bytes
    unequal = [
        index
        for index, (a, b) in enumerate(zip(old, new, strict=True))
        if a != b and normalize(a) != normalize(b)
    ]
    if not unequal:
        return "", 0.0
    at = unequal[0]
    share = len(unequal) / len(old)
    return f"element {at}: {_change(*(_shown(array[at]) for array in (old, new)))}", share


def _number_distance(rule: Tolerance, old: Array, new: Array) -> tuple[str, float]:
    apart = np.abs(new - old)
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    near = same | (apart <= rule.absolute + rule.relative * np.abs(old))
    # An infinity or a NaN on one side only.
    apart = np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
    near &= np.isfinite(apart)
    if near.all():
        return "", float(apart.max(initial=0.0))
    apart[near] = 0.0
    at = int(apart.argmax())
    text = f"element {at}: {_change(old[at], new[at])}, {np.sum(~near)} of {old.size} elements"
    return f"{text} beyond {format_rule(rule)}", float(apart[at])


def _exact_distance(tensor: Tensor, old: Array, new: Array) -> tuple[str, float]:
    # The bytes differ, which elements may hide: zeros with a sign, NaNs, integers over 2**53.
    unequal = ~((old == new) | (np.isnan(old) & np.isnan(new)))
    at = int(unequal.argmax())
    if not unequal[at]:
        return f"bytes of {tensor.datatype} elements differ", 0.0
    apart = np.abs(new - old)[unequal]
    measure = float(np.where(np.isfinite(apart), apart, np.inf).max())
    text = f"element {at}: {_change(old[at], new[at])}, {unequal.sum()} of {old.size} elements"
    return text, measure


def _cosine_distance(rule: Cosine, old: Array, new: Array) -> tuple[str, float]:
    lengths = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
    cosines = np.einsum("ij,ij->i", old, new) / lengths
    # A vector of zeros is near another one only.
    cosines = np.where((old == new).all(axis=1), 1.0, np.nan_to_num(cosines, nan=-1.0))
    at = int(cosines.argmin())
    lowest = float(cosines[at])
    return (f"row {at}: cosine {lowest:.6g}" if lowest < rule.minimum else ""), 1.0 - lowest


def _top_k_distance(rule: TopK, old: Array, new: Array) -> tuple[str, float]:
    k = min(rule.k, old.shape[1])
    missing = 0
    first = ""
    for row, (a, b) in enumerate(zip(old, new, strict=True)):
        best = np.argsort(-b, kind="stable")[:k]
        # Elements that equal the last of the k best may stand in its place.
        lowest = np.sort(a)[-k]
        wrong = int(np.sum(~(a[best] >= lowest)))
        missing += wrong
        if wrong and not first:
            wanted = np.argsort(-a, kind="stable")[:k]
            first = f"row {row}: {_change(wanted.tolist(), best.tolist())}"
    return first, missing / (k * len(old))


def _rows(tensor: Tensor, old: Array, new: Array) -> tuple[Array, Array]:
    width = tensor.shape[-1] if tensor.shape else 1
    return old.reshape(-1, max(1, width)), new.reshape(-1, max(1, width))


def _elements(tensor: Tensor) -> Array:
    """Return the elements as a flat array; raise InvalidArgument if the bytes are damaged."""
    if tensor.datatype == BYTES:
        elements = split_bytes(tensor.raw)
        array = np.empty(len(elements), dtype=np.object_)
        array[:] = elements
        return array
    dtype = NUMPY_TYPE.get(tensor.datatype)
    if dtype is None:
        raise InvalidArgument(f"unknown datatype {tensor.datatype}")
    if len(tensor.raw) % dtype.itemsize:
        raise InvalidArgument(f"{len(tensor.raw)} bytes are no {tensor.datatype} elements")
    array = np.frombuffer(tensor.raw, dtype)
    if tensor.datatype == "BF16":
        return (array.astype("<u4") << 16).view("<f4")
    return array


def _normalized(element: bytes) -> object:
    text = unicodedata.normalize("NFC", element.decode("utf-8", "surrogateescape"))
    return " ".join(text.split())


def _shown(element: bytes) -> str:
    return repr(element.decode("utf-8", "backslashreplace"))[: _MAX_SHOWN // 2]


def _change(old: Any, new: Any) -> str:
    return f"{str(old)[:_MAX_SHOWN]} -> {str(new)[:_MAX_SHOWN]}"
