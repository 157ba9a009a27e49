"""Settings from flags and environment: a frozen dataclass says what there is, this reads it.

Every fault is reported at once, one line each, with exit code 2, before a port opens. A flag's
environment variable is NEREID_ and its name in capitals (--http-port: NEREID_HTTP_PORT); the flag
wins. Knows no service's settings.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Parse = Callable[[str], Any]

Settings = TypeVar("Settings")

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
# How much of a name must be right for it to be taken for a slip of the fingers.
_ALIKE = 0.75


@dataclasses.dataclass(frozen=True)
class Flag:
    """How one setting is read; parse raises ValueError with the reason a text is refused."""

    help: str
    parse: Parse
    aliases: tuple[str, ...] = ()
    # Flags of older versions, and what to put before their values; the newer form wins.
    older: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Given several times, the values gather in a tuple; in the environment they are separated by ;
    # or stand in a list in JSON.
    repeated: bool = False
    # "--flag" alone stands for this text.
    bare: str | None = None
    # Its texts may hold a password: they are not shown, and handed on by environment() alone.
    secret: bool = False


def flag(  # noqa: PLR0913 - each argument is one fact of the declaration
    default: Any,
    help: str,  # noqa: A002 - argparse's own word for it
    parse: Parse = str,
    *,
    aliases: tuple[str, ...] = (),
    older: Mapping[str, str] | None = None,
    repeated: bool = False,
    bare: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field that is read from --its-name. A default of `...` makes it required."""
    metadata = {"flag": Flag(help, parse, aliases, older or {}, repeated, bare, secret)}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def boolean(text: str) -> bool:
    """true/false, 1/0, yes/no, on/off."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("expected true or false")


def integer(least: int, most: int | None = None) -> Parse:
    """A parser of whole numbers within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("expected a whole number") from None
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ValueError(f"expected a whole number {bound}")
        return value

    return parse


def seconds(text: str) -> float:
    """A time in seconds, not negative."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("expected a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise ValueError("expected a number of seconds, not negative")
    return value


def choice(*names: str) -> Parse:
    """A parser of one of these words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return text

    return parse


def address(text: str) -> str:
    """host:port, [v6]:port or unix:/path."""
    if text.startswith("unix:"):
        if len(text) == len("unix:"):
            raise ValueError("expected a path after unix:")
        return text
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("expected host:port or unix:/path")
    return text


def listening_address(interface: str, port: int) -> str:
    """An address from an interface, which may also be unix:/path or [v6], and a port."""
    if interface.startswith("unix:"):
        return interface
    interface = interface.removeprefix("[").removesuffix("]")
    return f"[{interface}]:{port}" if ":" in interface else f"{interface}:{port}"


port = integer(0, 65535)
# Of a port that is not opened unless it is asked for: -1 stands for none.
own_port = integer(-1, 65535)


def flag_name(field: dataclasses.Field[Any]) -> str:
    """--exit-timeout-secs for exit_timeout_secs."""
    return "--" + field.name.replace("_", "-")


def read(
    settings: type[Settings], argv: Sequence[str], environ: Mapping[str, str], program: str
) -> Settings:
    """The settings that argv and environ ask for; on faults, tell them all and exit with 2.

    Settings may have a method `faults()`: what is wrong with them as a whole, a line each.
    """
    (result,) = read_all((settings,), argv, environ, program)
    return cast("Settings", result)


def read_all(
    classes: Sequence[type[Any]], argv: Sequence[str], environ: Mapping[str, str], program: str
) -> list[Any]:
    """As read(), for several settings that share one command line; equal names are one flag, which
    is what the first that has it says.
    """
    fields: dict[str, dataclasses.Field[Any]] = {}
    for field in (field for cls in classes for field in dataclasses.fields(cls)):
        fields.setdefault(field.name, field)
    parser = _parser(list(fields.values()), classes[0].__doc__, program)
    given, surplus = parser.parse_known_args(argv)
    _tell_of_older(given, fields.values(), program)
    errors = _unknown(surplus, fields.values())
    values: dict[str, Any] = {}
    for field in fields.values():
        texts, source = _texts(field, _given(given, field), environ)
        if texts is not None:
            values |= _parsed(field, texts, source, errors)
        elif field.default is dataclasses.MISSING:
            errors.append(f"{flag_name(field)} is required")
    refuse(errors, program)
    results = [
        cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})
        for cls in classes
    ]
    for result in results:
        errors += getattr(result, "errors", list)()
    refuse(errors, program)
    return results


def _tell_of_older(
    given: argparse.Namespace, fields: Iterable[dataclasses.Field[Any]], program: str
) -> None:
    for field in fields:
        for text in vars(given).get(_older(field)) or ():
            said = f"{flag_name(field)} {text}"
            sys.stderr.write(f"{program}: warning: a flag of older versions, read as {said}\n")


def _given(given: argparse.Namespace, field: dataclasses.Field[Any]) -> list[str] | None:
    """What the command line says of a field, the older form first; None: nothing."""
    values = vars(given)
    return [*(values.get(_older(field)) or ()), *(values[field.name] or ())] or None


def _older(field: dataclasses.Field[Any]) -> str:
    return f"older {field.name}"


def _unknown(surplus: Sequence[str], fields: Iterable[dataclasses.Field[Any]]) -> list[str]:
    """What is no flag, with what may have been meant; not the value that stands behind it."""
    names: list[str] = []
    for field in fields:
        option: Flag = field.metadata["flag"]
        names += (flag_name(field), *option.aliases, *option.older)
    errors: list[str] = []
    awaits_value = False
    for text in surplus:
        name, equals, _ = text.partition("=")
        if name.startswith("-"):
            near = difflib.get_close_matches(name, names, 1, _ALIKE)
            hint = f"; did you mean {near[0]}?" if near else ""
            errors.append(f"unknown argument '{name}'{hint}")
        elif not awaits_value:
            errors.append(f"unknown argument '{text}'")
        awaits_value = name.startswith("-") and not equals
    return errors


def _parsed(
    field: dataclasses.Field[Any], texts: Sequence[str], source: str, errors: list[str]
) -> dict[str, Any]:
    option: Flag = field.metadata["flag"]
    values = []
    for text in texts:
        try:
            values.append(option.parse(text))
        except ValueError as error:
            shown = source if option.secret else f"{source}: '{text}'"
            errors.append(f"{shown}: {error}")
    if len(values) < len(texts):
        return {}
    return {field.name: tuple(values) if option.repeated else values[-1]}


def refuse(errors: Sequence[str], program: str) -> None:
    """If there are faults, print a line for each and exit with code 2."""
    # Services that share a flag find the same fault in it.
    for error_status in dict.fromkeys(errors):
        sys.stderr.write(f"{program}: {error_status}\n")
    if errors:
        sys.exit(2)


def arguments(settings: Any) -> list[str]:
    """The argv that read() turns back into these settings, whatever the environment says; but for
    those that are secret: anybody on the machine can see a process's argv.
    """
    argv: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        option: Flag = field.metadata["flag"]
        if value is None or option.secret:
            continue
        each = value if option.repeated else (value,)
        argv.extend(f"{flag_name(field)}={_text(one)}" for one in each)
    return argv


def environment(settings: Any) -> dict[str, str]:
    """The variables that read() turns back into these settings, as far as they are secret."""
    variables: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        option: Flag = field.metadata["flag"]
        value = getattr(settings, field.name)
        if option.secret and value:
            # What stands in a list may hold a ; of its own.
            text = json.dumps(value) if option.repeated else _text(value)
            variables[_variable(field)] = text
    return variables


def _variable(field: dataclasses.Field[Any]) -> str:
    return "NEREID_" + field.name.upper()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(default: Any) -> str:
    return ", ".join(map(_text, default)) if isinstance(default, tuple) else _text(default)


def _parser(
    fields: Sequence[dataclasses.Field[Any]], doc: str | None, program: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description=doc, allow_abbrev=False)
    for field in fields:
        option: Flag = field.metadata["flag"]
        default = field.default
        unsaid = default in (dataclasses.MISSING, None, (), "")
        shown = "" if unsaid else f" (default: {_shown(default)})"
        parser.add_argument(
            flag_name(field),
            *option.aliases,
            dest=field.name,
            action="append",
            nargs=None if option.bare is None else "?",
            const=option.bare,
            metavar=field.name.upper(),
            help=(option.help + shown).replace("%", "%%"),
        )
        for name, prefix in option.older.items():
            parser.add_argument(
                name,
                dest=_older(field),
                action="append",
                type=prefix.__add__,
                metavar="VALUE",
                help=f"of older versions: {flag_name(field)} {prefix}VALUE",
            )
    return parser


def _texts(
    field: dataclasses.Field[Any], given: list[str] | None, environ: Mapping[str, str]
) -> tuple[list[str] | None, str]:
    if given is not None:
        return given, flag_name(field)
    variable = _variable(field)
    text = environ.get(variable)
    if text is None:
        return None, variable
    return (_listed(text) if field.metadata["flag"].repeated else [text]), variable


def _listed(text: str) -> list[str]:
    """a;b or, as environment() writes it, ["a", "b"]."""
    if text.startswith('["'):
        with contextlib.suppress(ValueError):
            return [str(each) for each in json.loads(text)]
    return text.split(";")
