"""Configurations of several files: a profile's overlay is merged over the file beside it.

A field of the overlay replaces the field below it; messages are merged field by field. Of lists,
`input` and `output`, and `instance_group` if the overlay names each group, are merged by name, and
maps by key. Every other list replaces the list below it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.text_format import ParseInteger

from nereid.core.errors import InvalidArgument
from nereid.core.variables import wants_variables
from nereid.model_config.text_fields import text_fields
from nereid.model_config.text_format import parse_config
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import FieldDescriptor

    from nereid.core.variables import Variables
    from nereid.model_config.text_fields import TextField, TextValue

_MAX_PLACES: Final = 4
_BY_NAME: Final = frozenset({"input", "output", "instance_group"})


class ConfigFile(NamedTuple):
    """A file of a configuration. is_overlay: errors name the file."""

    name: str
    text: str
    is_overlay: bool = False


class WrittenConfig(NamedTuple):
    """A configuration as its files say. sources: file and line, by the path of a field."""

    config: model_config_pb2.ModelConfig
    sources: Mapping[str, str]


def read_config_files(
    files: Sequence[ConfigFile], *, model_name: str, variables: Variables
) -> WrittenConfig:
    """Return the configuration of these files, the lowest first; raise InvalidArgument.

    There are no sources if only one file says everything.
    """
    if len(files) == 1 and not files[0].is_overlay and not wants_variables(files[0].text):
        return WrittenConfig(parse_config(files[0].text, model_name=model_name), {})
    return merge_config_files(files, model_name=model_name, variables=variables)


def merge_config_files(
    files: Sequence[ConfigFile], *, model_name: str, variables: Variables
) -> WrittenConfig:
    """Return the same, always with the sources."""
    merged, sources = model_config_pb2.ModelConfig(), dict[str, str]()
    for file in files:
        parsed = parse_config(
            file.text, model_name=model_name, file=file.name if file.is_overlay else ""
        )
        wanted = variables if wants_variables(file.text) else None
        merge = _Merge(file, model_name, wanted, sources)
        merge.message(merged, parsed, text_fields(file.text.removeprefix("\ufeff")), "")
    return WrittenConfig(merged, sources)


def add_sources(message: str, sources: Mapping[str, str]) -> str:
    """Return an error's text with the places of the fields and keys that it names."""
    words = f" {_plain(message)} "
    named = {
        path: place
        for path, place in sources.items()
        if (
            f"'{path[:-1].partition('[')[2]}'" in message
            if path.endswith("]")
            else f" {_plain(path.rpartition('.')[2])} " in words
        )
    }
    # A field is named more exactly than the message that has it.
    places = [
        f"{path} is from {place}"
        for path, place in named.items()
        if not any(other.startswith(f"{path}.") for other in named)
    ]
    if not places or any(place in message for place in sources.values()):
        return message
    return f"{message} ({', '.join(places[:_MAX_PLACES])})"


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


class _Merge:
    """Merges one file over what the files before it say."""

    def __init__(
        self,
        file: ConfigFile,
        model_name: str,
        variables: Variables | None,
        sources: dict[str, str],
    ) -> None:
        self._file = file
        self._model_name = model_name
        self._variables = variables
        self._sources = sources

    def message(self, below: Any, parsed: Any, fields: Sequence[TextField], prefix: str) -> None:
        """Merge a message. prefix: of the paths of its fields."""
        values: dict[str, list[TextValue]] = {}
        lines: dict[str, int] = {}
        for written in fields:
            values.setdefault(written.name, []).extend(written.values)
            lines.setdefault(written.name, written.line)
        for name, of_field in values.items():
            field = parsed.DESCRIPTOR.fields_by_name[name]
            path = f"{prefix}{name}"
            self._forget_alternatives(below, field, prefix)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._map(
                    getattr(below, name), getattr(parsed, name), of_field, field.message_type, path
                )
            elif field.is_repeated:
                self._list(below, getattr(parsed, name), of_field, name, path)
                if not of_field:
                    self._sources[path] = self._place(lines[name])
            elif field.message_type is not None:
                self._sources[path] = self._place(lines[name])
                getattr(below, name).SetInParent()
                self.message(
                    getattr(below, name), getattr(parsed, name), of_field[0].fields, f"{path}."
                )
            else:
                setattr(below, name, self._scalar(getattr(parsed, name), of_field[0].line))
                self._sources[path] = self._place(lines[name])

    def _map(
        self, below: Any, parsed: Any, entries: Sequence[TextValue], entry: Any, path: str
    ) -> None:
        """Merge the entries of a map. entry: the type of one."""
        key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
        for written in entries:
            parts = {part.name: part.values[0] for part in written.fields}
            key: Any = key_field.default_value
            if "key" in parts:
                given = parts["key"]
                is_text = key_field.type == key_field.TYPE_STRING
                key = given.text if is_text else ParseInteger(given.tokens[0], is_long=True)
            self._sources[f"{path}[{key}]"] = self._place(written.line)
            if value_field.message_type is None:
                line = parts["value"].line if "value" in parts else written.line
                below[key] = self._scalar(parsed[key], line)
                continue
            below[key].Clear()
            if "value" in parts:
                # Fields of a value have no source of their own.
                self._unlisted().message(below[key], parsed[key], parts["value"].fields, "")

    def _list(
        self, below: Any, parsed: Any, values: Sequence[TextValue], name: str, path: str
    ) -> None:
        """Merge a list. below: the message that has it."""
        elements = getattr(below, name)
        is_message = values and hasattr(parsed[0], "DESCRIPTOR")
        if is_message and path in _BY_NAME and all(element.name for element in parsed):
            known = {element.name: element for element in elements}
            for element, value in zip(parsed, values, strict=True):
                place = f"{path}[{element.name}]"
                self._sources[place] = self._place(value.line)
                # A name that the file itself has twice stays twice, and is refused later.
                merged = known.pop(element.name, None) or elements.add()
                self.message(merged, element, value.fields, f"{place}.")
            return
        del elements[:]
        if path in _BY_NAME:
            # Only elements of these have sources of their own.
            self._forget(path)
        if values:
            self._sources[path] = self._place(values[0].line)
        for element, value in zip(parsed, values, strict=True):
            if is_message:
                self._unlisted().message(elements.add(), element, value.fields, "")
            else:
                elements.append(self._scalar(element, value.line))

    def _unlisted(self) -> _Merge:
        """Return the same merge for messages whose fields have no source of their own."""
        return _Merge(self._file, self._model_name, self._variables, {})

    def _scalar(self, value: Any, line: int) -> Any:
        if self._variables is None or not isinstance(value, str):
            return value
        try:
            return self._variables.expand(value)
        except ValueError as error:
            raise InvalidArgument(
                f"failed to read text proto for model '{self._model_name}': {self._place(line)}:"
                f" {error}"
            ) from None

    def _place(self, line: int) -> str:
        return f"{self._file.name}:{line}"

    def _forget_alternatives(self, below: Any, field: FieldDescriptor, prefix: str) -> None:
        """Forget the sources of the field that this one replaces: only one can be set."""
        if field.containing_oneof is not None:
            replaced = below.WhichOneof(field.containing_oneof.name)
            if replaced not in (None, field.name):
                self._forget(f"{prefix}{replaced}")

    def _forget(self, path: str) -> None:
        for known in [each for each in self._sources if each.startswith(path)]:
            if known == path or known[len(path)] in ".[":
                del self._sources[known]
