"""Rows that declare fields of a model's configuration, and functions that read these rows.

Completion, validation, the frozen form, `nereid check` and `nereid explain` read the rows and name
no field, so a new field needs only one row.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nereid.pb.model_config_pb2 import ModelConfig

_Row = TypeVar("_Row")

_KEY: Final = "row"


class Scope(NamedTuple):
    """A message and its configuration. batch_size_open: max_batch_size is not completed yet."""

    config: ModelConfig
    message: Any
    batch_size_open: bool = False


class Advice(NamedTuple):
    """A finding about a field, for a model that loads; see `nereid.facts.findings.Finding`.

    applies: gets the field's message. is_warning: whether the author probably meant something else.
    """

    code: str
    message: str
    hint: str
    applies: Callable[[Any], bool]
    is_warning: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MessageField:
    """The row of a field that a protobuf message has, such as dynamic_batching."""

    # Name as authors write it. A dotted name is a field of an inner message.
    name: str
    # Frozen value if the message does not have the field.
    default: Any
    # Returns a message's frozen value; by default, that of the field itself.
    read: Callable[[Any], Any] | None = None
    complete: Callable[[Scope], None] | None = None
    # Raises InvalidArgument.
    check: Callable[[Scope], None] | None = None
    # True for a list that is scanned for each batch, whose length is therefore limited.
    is_scanned: bool = False
    # Returns whether the model's target_p99_us replaces the value; `None` if it never does.
    decided_by_target: Callable[[Scope], bool] | None = None
    advice: Advice | None = None

    def read_from(self, message: Any) -> Any:
        """Return the field's frozen value from a valid message."""
        return (self.read or attrgetter(self.name))(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """The row of a field that only Nereid has. Authors set it in `parameters`."""

    name: str
    default: Any
    # Raises ValueError with the reason if it refuses the text.
    parse: Callable[[str], Any]
    # Raises InvalidArgument if the value does not fit the configuration.
    check: Callable[[ModelConfig, Any], None] | None = None
    # True if the model's target_p99_us replaces the parameter.
    decided_by_target: bool = False

    def read_from(self, config: ModelConfig) -> Any:
        """Return the parameter's value or default; raise InvalidArgument if the text is refused."""
        if self.name not in config.parameters:
            return self.default
        text = config.parameters[self.name].string_value
        try:
            value = self.parse(text)
        except ValueError as error:
            raise InvalidArgument(
                f"parameter '{self.name}' of model '{config.name}': {error} but got '{text}'"
            ) from None
        if self.check is not None:
            self.check(config, value)
        return value


def config_field(row: MessageField | Parameter) -> Any:
    """Return a dataclass field that a row declares."""
    return dataclasses.field(default_factory=lambda: row.default, metadata={_KEY: row})


def message_rows(form: type[Any], message: Any) -> Iterator[tuple[str, MessageField]]:
    """Yield attribute and row of each field that both the frozen form and the message have."""
    known = message.DESCRIPTOR.fields_by_name
    for attribute, row in _rows(form, MessageField):
        if row.name.partition(".")[0] in known:
            yield attribute, row


def message_values(form: type[Any], message: Any) -> dict[str, Any]:
    """Read the fields of a valid message. Key: an attribute. Value: its frozen value."""
    return {attribute: row.read_from(message) for attribute, row in message_rows(form, message)}


def complete_message(form: type[Any], scope: Scope) -> None:
    """Set the default of each field that the message leaves open."""
    for _, row in message_rows(form, scope.message):
        if row.complete is not None:
            row.complete(scope)


def check_message(form: type[Any], scope: Scope) -> None:
    """Check a message in the order of the frozen form; raise InvalidArgument."""
    for _, row in message_rows(form, scope.message):
        if row.check is not None:
            row.check(scope)


def parameters_of(form: type[Any]) -> list[Parameter]:
    """Return the rows of all parameters of a frozen form."""
    return [row for _, row in _rows(form, Parameter)]


def parameter_values(form: type[Any], config: ModelConfig) -> dict[str, Any]:
    """Read and check a form's parameters, by attribute; raise InvalidArgument."""
    return {attribute: row.read_from(config) for attribute, row in _rows(form, Parameter)}


def _rows(form: type[Any], kind: type[_Row]) -> Iterator[tuple[str, _Row]]:
    for field in dataclasses.fields(form):
        row = field.metadata.get(_KEY)
        if isinstance(row, kind):
            yield field.name, row
