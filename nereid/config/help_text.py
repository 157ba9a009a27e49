"""Text of --help, which lists each flag once, under the flag's topic."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from nereid.config.flags import DeclaredFlag, flags_by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_WIDTH = 100
_INDENT = 30


VARIABLES: Final = "Each flag has an environment variable: NEREID_HTTP_PORT for --http-port."


def help_text(
    flags: Sequence[DeclaredFlag],
    description: str,
    program: str,
    common: Collection[str] = (),
    ending: str = VARIABLES,
) -> str:
    """Return the text of --help; `common` names the fields to show, or all if it is empty."""
    lines = [f"usage: {program} [FLAGS]", "", *textwrap.wrap(" ".join(description.split()), _WIDTH)]
    shown = [flag for flag in flags if not common or flag.field.name in common]
    for topic, members in flags_by_topic(shown):
        lines += ["", f"{topic.value if topic else 'Other'}:"]
        for flag in members:
            lines += _entry(flag)
    if ending:
        lines += ["", *textwrap.wrap(" ".join(ending.split()), _WIDTH)]
    if len(shown) < len(flags):
        left = len(flags) - len(shown)
        lines.append(f"These are the common flags; --help-all shows the other {left}, too.")
    return "\n".join(lines)


def _entry(flag: DeclaredFlag) -> list[str]:
    notes = ["required"] if flag.required else []
    if flag.default_text:
        notes.append(f"default: {flag.default_text}")
    if flag.option.hardened is not None:
        notes.append(f"with --hardened: {flag.option.hardened}")
    if flag.option.platform is not None:
        notes.append(f"default from {flag.option.platform.name}")
    if flag.option.aliases:
        notes.append(f"alias: {', '.join(flag.option.aliases)}")
    if flag.option.deprecated:
        notes.append(f"older forms: {', '.join(flag.option.deprecated)}")
    text = flag.option.help + (f" ({'; '.join(notes)})" if notes else "")
    head = f"  {flag.name} " + ("[VALUE]" if flag.option.bare is not None else "VALUE")
    wrapped = textwrap.wrap(text, _WIDTH - _INDENT, break_on_hyphens=False)
    if len(head) + 2 <= _INDENT:
        head, wrapped = f"{head:{_INDENT}}{wrapped[0]}", wrapped[1:]
    return [head, *(" " * _INDENT + line for line in wrapped)]
