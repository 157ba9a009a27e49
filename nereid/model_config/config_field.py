"""Rows that declare fields of a model's configuration, and the functions that read these rows.

A frozen dataclass declares its fields by `config_field()`, as settings declare flags. Completion,
validation, the frozen form, `nereid check` and `nereid explain` read the rows and name no field, so
that a new field is one row. Knows no field itself.
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
    """A message of a configuration, such as dynamic_batching, with the configuration around it.

    batch_size_open: max_batch_size has yet to be completed.
    """

    config: ModelConfig
    message: Any
    batch_size_open: bool = False


class Advice(NamedTuple):
    """A finding about a field of a model that loads.

    code, message and hint are those of `nereid.facts.findings.Finding`. applies gets the message
    that has the field. is_warning: the author probably meant something else.
    """

    code: str
    message: str
    hint: str
    applies: Callable[[Any], bool]
    is_warning: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MessageField:
    """Row of a field of a protobuf message, such as dynamic_batching."""

    # Name as the author writes it. A dotted name is that of a field in a message of the message.
    name: str
    # Frozen value where the message has no such field.
    default: Any
    # Function of the message that returns the frozen value; by default the field itself.
    read: Callable[[Any], Any] | None = None
    # Function that sets the default in an incomplete message.
    complete: Callable[[Scope], None] | None = None
    # Function that raises InvalidArgument.
    check: Callable[[Scope], None] | None = None
    # True for a list that is scanned for each batch: its length is bounded.
    is_scanned: bool = False
    # Function that returns whether the field has a value that a model's target_p99_us replaces;
    # `None`: a target leaves the field alone.
    decided_by_target: Callable[[Scope], bool] | None = None
    # Finding of `nereid check` and `nereid explain`.
    advice: Advice | None = None

    def read_from(self, message: Any) -> Any:
        """Return the frozen value of a valid message."""
        return (self.read or attrgetter(self.name))(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """Row of a field of Nereid's own, which an author sets by an entry of `parameters`."""

    # Key of the entry.
    name: str
    # Value of a configuration without the entry.
    default: Any
    # Parser of the entry's text, which raises ValueError with the reason why it refuses one.
    parse: Callable[[str], Any]
    # Function that raises InvalidArgument for a value that does not fit the configuration.
    check: Callable[[ModelConfig, Any], None] | None = None
    # True if a model's target_p99_us replaces the parameter.
    decided_by_target: bool = False

    def read_from(self, config: ModelConfig) -> Any:
        """Return the value, or the default of a configuration without the parameter.

        Raises:
            InvalidArgument: the text is refused, or the value does not fit the configuration.
        """
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
    """Return a dataclass field that is declared by a row."""
    return dataclasses.field(default_factory=lambda: row.default, metadata={_KEY: row})


def message_rows(form: type[Any], message: Any) -> Iterator[tuple[str, MessageField]]:
    """Yield the attribute and the row of each field that a frozen form and a message both have."""
    known = message.DESCRIPTOR.fields_by_name
    for attribute, row in _rows(form, MessageField):
        if row.name.partition(".")[0] in known:
            yield attribute, row


def message_values(form: type[Any], message: Any) -> dict[str, Any]:
    """Return the values of a frozen form's fields that a valid message has."""
    return {attribute: row.read_from(message) for attribute, row in message_rows(form, message)}


def complete_message(form: type[Any], scope: Scope) -> None:
    """Set the defaults of a message."""
    for _, row in message_rows(form, scope.message):
        if row.complete is not None:
            row.complete(scope)


def check_message(form: type[Any], scope: Scope) -> None:
    """Check the fields of a message, in the order of the frozen form.

    Raises:
        InvalidArgument: the first error.
    """
    for _, row in message_rows(form, scope.message):
        if row.check is not None:
            row.check(scope)


def parameters_of(form: type[Any]) -> list[Parameter]:
    """Return the rows of a frozen form's parameters."""
    return [row for _, row in _rows(form, Parameter)]


def parameter_values(form: type[Any], config: ModelConfig) -> dict[str, Any]:
    """Return the values of a frozen form's parameters, checked.

    Raises:
        InvalidArgument: the first error.
    """
    return {attribute: row.read_from(config) for attribute, row in _rows(form, Parameter)}


def _rows(form: type[Any], kind: type[_Row]) -> Iterator[tuple[str, _Row]]:
    for field in dataclasses.fields(form):
        row = field.metadata.get(_KEY)
        if isinstance(row, kind):
            yield field.name, row
