"""Services of two releases side by side: the wire contract that the last release had, as
`python protos/generate.py --record` wrote it down, beside the present one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nereid.pb import kserve_pb2, model_config_pb2, nereid_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

_RELEASED = Path(__file__).parents[2] / "protos" / "released.binpb"
_PACKAGE = "nereid.v1"
# Nested messages are filled to this depth.
_DEPTH = 4


def released_files() -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString(_RELEASED.read_bytes())


def present_files() -> descriptor_pb2.FileDescriptorSet:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (model_config_pb2, kserve_pb2, nereid_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files


def pool_of(files: descriptor_pb2.FileDescriptorSet) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def contract_of(files: descriptor_pb2.FileDescriptorSet) -> dict[str, tuple[Any, ...]]:
    """All that a peer relies on, by its name: fields by number, values of enums, methods."""
    contract: dict[str, tuple[Any, ...]] = {}

    def add_enum(prefix: str, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        for value in enum.value:
            contract[f"{prefix}.{enum.name} = {value.number}"] = (value.name,)

    def add_message(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}.{message.name}"
        for field in message.field:
            oneof = (
                message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            )
            shape = (field.name, field.type, field.label, field.type_name, oneof)
            contract[f"{name} field {field.number}"] = shape
        for nested in message.nested_type:
            add_message(name, nested)
        for enum in message.enum_type:
            add_enum(name, enum)

    for file in files.file:
        for message in file.message_type:
            add_message(file.package, message)
        for enum in file.enum_type:
            add_enum(file.package, enum)
        for service in file.service:
            for method in service.method:
                streams = (method.client_streaming, method.server_streaming)
                name = f"{file.package}.{service.name}/{method.name}"
                contract[name] = (method.input_type, method.output_type, *streams)
    return contract


def breaks(
    old: descriptor_pb2.FileDescriptorSet, new: descriptor_pb2.FileDescriptorSet
) -> list[str]:
    """What a peer of the old contract would miss in the new one, or misunderstand."""
    present = contract_of(new)
    return [name for name, shape in contract_of(old).items() if present.get(name) != shape]


def test_the_present_contract_has_all_that_the_last_release_relies_on() -> None:
    assert breaks(released_files(), present_files()) == []


def _message(files: descriptor_pb2.FileDescriptorSet, name: str) -> descriptor_pb2.DescriptorProto:
    return next(each for file in files.file for each in file.message_type if each.name == name)


@pytest.mark.parametrize("change", ["number", "type", "oneof", "removal", "enum", "method"])
def test_a_change_that_a_peer_would_misunderstand_is_found(change: str) -> None:
    files = released_files()
    hello, command = _message(files, "Hello"), _message(files, "ExecutorCommand")
    field = hello.field[0]
    if change == "number":
        field.number = 99
    elif change == "type":
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    elif change == "oneof":
        command.field[0].ClearField("oneof_index")
    elif change == "removal":
        del hello.field[0]
    elif change == "enum":
        _message(files, "Device").enum_type[0].value[1].number = 7
    else:
        del files.file[-1].service[0].method[0]
    assert len(breaks(released_files(), files)) == 1


def _fill(message: Message, depth: int = _DEPTH) -> None:
    """Set every field, of a oneof the last."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            value = _value(field)
            if field.is_repeated:
                getattr(message, field.name).extend([value, value])
            else:
                setattr(message, field.name, value)
        elif not depth:
            continue
        elif field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field, depth)
        elif field.is_repeated:
            _fill(getattr(message, field.name).add(), depth - 1)
        else:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), depth - 1)


def _fill_map(entries: Any, field: Any, depth: int) -> None:
    key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
    if value.message_type is None:
        entries[_value(key)] = _value(value)
    else:
        _fill(entries[_value(key)], depth - 1)


def _value(field: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    by_type = {
        field.CPPTYPE_STRING: b"text" if field.type == field.TYPE_BYTES else "text",
        field.CPPTYPE_BOOL: True,
        field.CPPTYPE_DOUBLE: 0.5,
        field.CPPTYPE_FLOAT: 0.5,
    }
    return by_type.get(field.cpp_type, field.number)


def _messages(pool: descriptor_pool.DescriptorPool) -> dict[str, Any]:
    """The mesh's own messages."""
    return dict(pool.FindFileByName("nereid.proto").message_types_by_name)


def _common(message: Message, other: Any) -> Any:
    """A message's fields that another release knows as well."""
    known: dict[str, Any] = {}
    for field, value in message.ListFields():
        theirs = other.fields_by_name.get(field.name)
        if theirs is None:
            continue
        nested = theirs.message_type
        if nested is None or nested.GetOptions().map_entry:
            known[field.name] = str(value) if nested is None else sorted(value)
        elif field.is_repeated:
            known[field.name] = [_common(each, nested) for each in value]
        else:
            known[field.name] = _common(value, nested)
    return known


_OLD, _NEW = pool_of(released_files()), pool_of(present_files())


@pytest.mark.parametrize("sender", ["older", "newer"])
@pytest.mark.parametrize("name", sorted(_messages(_OLD)))
def test_what_one_release_writes_the_other_reads(name: str, sender: str) -> None:
    writer, reader = (_OLD, _NEW) if sender == "older" else (_NEW, _OLD)
    written = message_factory.GetMessageClass(_messages(writer)[name])()
    _fill(written)
    read = message_factory.GetMessageClass(_messages(reader)[name])()
    read.ParseFromString(written.SerializeToString())
    known = _common(written, read.DESCRIPTOR)
    assert known == _common(read, written.DESCRIPTOR)
    # What the reader does not know is carried along, not an error.
    again = message_factory.GetMessageClass(_messages(writer)[name])()
    again.ParseFromString(read.SerializeToString())
    assert again == written
