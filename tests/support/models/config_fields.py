"""Every number and every list of a model's configuration, by the schema, and how to set them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from nereid.pb import model_config_pb2

Path = tuple[str, ...]

LARGEST: Final = {
    FieldDescriptor.TYPE_INT32: 2**31 - 1,
    FieldDescriptor.TYPE_INT64: 2**63 - 1,
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
}
# Elements of lists need not be of one name.
_NAMES: Final = ("name", "input_name", "output_name")


def number_paths() -> list[Path]:
    """Return the paths of all whole numbers."""
    return sorted({path for path, field in _fields(_ROOT) if field.type in LARGEST})


def list_paths() -> list[Path]:
    """Return the paths of all lists and maps."""
    return sorted({path for path, field in _fields(_ROOT) if field.is_repeated})


def field_of(path: Path) -> Any:
    """Return the descriptor of the field at a path."""
    return next(field for each, field in _fields(_ROOT) if each == path)


def set_number(message: Message, path: Path, number: int) -> None:
    """Set the number in each message on the way that is there, or in a new one."""
    for owner, field in _owners(message, path):
        value = getattr(owner, field.name)
        if field.is_repeated:
            value[:] = [number]
        else:
            setattr(owner, field.name, number)


def lengthen(message: Message, path: Path, count: int) -> None:
    """Give so many elements to the list in each message on the way, each like its first one."""
    for owner, field in _owners(message, path):
        value = getattr(owner, field.name)
        if _is_map(field):
            _fill_map(value, field, count)
        elif field.message_type is None:
            first = value[0] if value else _SCALARS.get(field.type, 1)
            value.extend([first] * (count - len(value)))
        else:
            for number in range(len(value), count):
                each = value.add()
                if number:
                    each.CopyFrom(value[0])
                for name in _NAMES:
                    if name in each.DESCRIPTOR.fields_by_name:
                        setattr(each, name, f"{getattr(each, name)}{number}")


_ROOT: Final = model_config_pb2.ModelConfig.DESCRIPTOR
_SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: "a",
    FieldDescriptor.TYPE_BYTES: b"a",
    FieldDescriptor.TYPE_BOOL: True,
}


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fields(descriptor: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for field in descriptor.fields:
        here = (*path, field.name)
        yield here, field
        below = field.message_type
        if _is_map(field):
            below = below.fields_by_name["value"].message_type
        if below is not None:
            yield from _fields(below, here)


def _owners(message: Message, path: Sequence[str]) -> Iterator[tuple[Message, Any]]:
    """The messages that have the last field of a path; one is made where there is none."""
    name, *rest = path
    field: Any = message.DESCRIPTOR.fields_by_name[name]
    if not rest:
        yield message, field
        return
    value = getattr(message, name)
    if _is_map(field):
        if not value:
            _fill_map(value, field, 1)
        below = list(value.values())
    elif field.is_repeated:
        below = list(value) or [value.add()]
    else:
        value.SetInParent()
        below = [value]
    for each in below:
        yield from _owners(each, rest)


def _fill_map(value: Any, field: Any, count: int) -> None:
    key, element = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    first = next(iter(value.values()), None)
    for number in range(len(value), count):
        at: Any = f"x{number or ''}" if key.type == FieldDescriptor.TYPE_STRING else number + 1
        if element.message_type is None:
            value[at] = _SCALARS.get(element.type, 1) if first is None else first
        elif first is None:
            value[at].SetInParent()
        else:
            value[at].CopyFrom(first)
