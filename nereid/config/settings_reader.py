"""Read settings from a command line and the environment, and write settings for a child process.

All errors are reported at once, with exit code 2, before a port opens.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nereid.config import config_file
from nereid.config.flags import (
    Choice,
    DeclaredFlag,
    boolean,
    declared_flags,
    flag_name,
    flag_text,
    similar,
)
from nereid.config.help_text import VARIABLES, help_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Settings = TypeVar("Settings")

# Name of the field of --hardened (nereid.config.hardened).
_HARDENED = "hardened"


def read_settings(
    settings: type[Settings], argv: Sequence[str], environ: Mapping[str, str], program: str
) -> Settings:
    """Return the settings that argv and environ give; on errors, print them all and exit with 2.

    A settings class may have a method `errors()`, which returns errors of the settings as a whole.
    """
    (result,) = read_shared_settings((settings,), argv, environ, program)
    return cast("Settings", result)


def read_shared_settings(  # noqa: PLR0913 (by keyword)
    classes: Sequence[type[Any]],
    argv: Sequence[str],
    environ: Mapping[str, str],
    program: str,
    *,
    common: Collection[str] = (),
    ending: str = VARIABLES,
) -> list[Any]:
    """Read several settings classes from one command line, like `read_settings()`.

    Equal names are one flag, declared by the first class.
    """
    flags = declared_flags(*classes)
    parser = _parser(flags, program)
    given, surplus = parser.parse_known_args(argv)
    if given.help or given.help_all:
        shown = () if given.help_all else common
        print(help_text(flags, classes[0].__doc__ or "", program, shown, ending))  # noqa: T201
        sys.exit(0)
    _warn_of_deprecated(given, flags, program)
    errors = _unknown_arguments(surplus, flags)
    values: dict[str, Any] = {}
    in_file = _read_file(given, flags, environ, errors)
    # Read --hardened first, because the other flags' defaults depend on it.
    for flag in sorted(flags, key=lambda flag: flag.field.name != _HARDENED):
        texts, source = _texts(flag, _texts_in_argv(given, flag), environ, in_file)
        if flag.option.merge is not None:
            texts = flag.option.merge(environ, texts or ()) or None
        if texts is None and values.get(_HARDENED) and flag.option.hardened is not None:
            texts = [flag.option.hardened]
        if texts is not None:
            values |= _parsed(flag, texts, source, errors)
        elif flag.required:
            errors.append(f"{flag.name} is required")
    exit_on_errors(errors, program)
    results = [
        cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})
        for cls in classes
    ]
    for result in results:
        errors += getattr(result, "errors", list)()
    exit_on_errors(errors, program)
    if values.get(config_file.PRINT):
        print(config_file.file_text(flags, values))  # noqa: T201
        sys.exit(0)
    return results


def settings_parser(classes: Sequence[type[Any]], program: str) -> argparse.ArgumentParser:
    """Return a description of the flags of these settings classes, for shell completion."""
    flags = declared_flags(*classes)
    options = {flag.field.name: flag.option for flag in flags}
    parser = _parser(flags, program)
    parser.description = " ".join((classes[0].__doc__ or "").split())
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        option = options.get(action.dest)
        if option is None:
            continue
        action.help = option.help.replace("%", "%%")
        if isinstance(option.parse, Choice):
            action.choices = option.parse.names
        elif option.parse is boolean:
            action.choices = ("true", "false")
    return parser


def exit_on_errors(errors: Sequence[str], program: str) -> None:
    """Print a line for each error and exit with code 2; return if there are no errors."""
    # Several services that share a flag report the same error.
    for error in dict.fromkeys(errors):
        sys.stderr.write(f"{program}: {error}\n")
    if errors:
        sys.exit(2)


def settings_argv(settings: Any) -> list[str]:
    """Return the argv for these settings, without secrets, because anybody can see argv."""
    argv: list[str] = []
    for flag in declared_flags(type(settings)):
        value = getattr(settings, flag.field.name)
        if value is None or flag.option.secret:
            continue
        elements = value if flag.option.repeated else (value,)
        argv.extend(f"{flag.name}={flag_text(element)}" for element in elements)
    return argv


def secret_environ(settings: Any) -> dict[str, str]:
    """Return the environment variables from which read_settings() reads these settings' secrets."""
    variables: dict[str, str] = {}
    for flag in declared_flags(type(settings)):
        value = getattr(settings, flag.field.name)
        if flag.option.secret and value:
            # An element may contain the separator, so the list is written as JSON.
            text = json.dumps(value) if flag.option.repeated else flag_text(value)
            variables[flag.variable] = text
    return variables


def _parser(flags: Iterable[DeclaredFlag], program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program, usage=f"{program} [FLAGS]", allow_abbrev=False, add_help=False
    )
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--help-all", action="store_true")
    for flag in flags:
        option = flag.option
        parser.add_argument(
            flag.name,
            *option.aliases,
            dest=flag.field.name,
            action="append",
            nargs=None if option.bare is None else "?",
            const=option.bare,
        )
        for name, prefix in option.deprecated.items():
            parser.add_argument(
                name, dest=_deprecated_dest(flag), action="append", type=prefix.__add__
            )
    return parser


def _deprecated_dest(flag: DeclaredFlag) -> str:
    # No field's name contains a space.
    return f"deprecated {flag.field.name}"


def _warn_of_deprecated(
    given: argparse.Namespace, flags: Iterable[DeclaredFlag], program: str
) -> None:
    for flag in flags:
        for text in vars(given).get(_deprecated_dest(flag)) or ():
            newer = f"{flag_name(flag.field)} {text}"
            sys.stderr.write(f"{program}: warning: a flag of older versions, read as {newer}\n")


def _texts_in_argv(given: argparse.Namespace, flag: DeclaredFlag) -> list[str] | None:
    values = vars(given)
    return [*(values.get(_deprecated_dest(flag)) or ()), *(values[flag.field.name] or ())] or None


def _unknown_arguments(surplus: Sequence[str], flags: Iterable[DeclaredFlag]) -> list[str]:
    """Return an error for each unknown flag, with a similar known flag if there is one."""
    names = ["--help", "--help-all"]
    for flag in flags:
        names += (flag.name, *flag.option.aliases, *flag.option.deprecated)
    errors: list[str] = []
    expects_value = False
    for text in surplus:
        name, equals, _ = text.partition("=")
        if name.startswith("-"):
            errors.append(f"unknown argument '{name}'{similar(name, names)}")
        elif not expects_value:
            errors.append(f"unknown argument '{text}'")
        expects_value = name.startswith("-") and not equals
    return errors


def _parsed(
    flag: DeclaredFlag, texts: Sequence[str], source: str, errors: list[str]
) -> dict[str, Any]:
    values = []
    for text in texts:
        try:
            values.append(flag.option.parse(text))
        except ValueError as error:
            shown = source if flag.option.secret else f"{source}: '{text}'"
            errors.append(f"{shown}: {error}")
    if len(values) < len(texts):
        return {}
    return {flag.field.name: tuple(values) if flag.option.repeated else values[-1]}


def _read_file(
    given: argparse.Namespace,
    flags: Sequence[DeclaredFlag],
    environ: Mapping[str, str],
    errors: list[str],
) -> config_file.ConfigFile:
    for flag in flags:
        if flag.field.name == config_file.FILE:
            texts, _ = _texts(flag, _texts_in_argv(given, flag), environ, config_file.NO_FILE)
            if texts:
                return config_file.read(texts[-1], flags, errors)
    return config_file.NO_FILE


def _texts(
    flag: DeclaredFlag,
    in_argv: list[str] | None,
    environ: Mapping[str, str],
    in_file: config_file.ConfigFile,
) -> tuple[list[str] | None, str]:
    if in_argv is not None:
        return in_argv, flag.name
    text = environ.get(flag.variable)
    if text is None:
        if flag.field.name in in_file.texts:
            return in_file.texts[flag.field.name], f"{in_file.path}: {flag.name[2:]}"
        platform = flag.option.platform
        text = None if platform is None else platform.flag_text(environ)
        if platform is None or text is None:
            return None, flag.variable
        return [text], platform.name
    return (_split_list(text) if flag.option.repeated else [text]), flag.variable


def _split_list(text: str) -> list[str]:
    """Return the elements of a list written as a;b, or as ["a", "b"] like secret_environ()."""
    if text.startswith('["'):
        with contextlib.suppress(ValueError):
            return [str(element) for element in json.loads(text)]
    return text.split(";")
