"""Changes fields in the text of a config.pbtxt; comments elsewhere and the order of fields stay."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format, text_format

from nereid.core.errors import InvalidArgument
from nereid.model_config.text_format import parse_config
from nereid.pb import model_config_pb2
from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH, PREFERRED, Value
from nereid_analyze.space.override import overridden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_OPEN: Final = {"{": "}", "[": "]", "<": ">"}


class ConfigTextError(Exception):
    """Raised if a text cannot be changed; the message says why."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    begin: int
    end: int


def changed_text(
    text: str, model: str, values: Mapping[str, Value], served: Mapping[str, Any], *, cpu_only: bool
) -> str:
    """Return the text with these values; raise ConfigTextError if it cannot be changed.

    served: the configuration as the server completed it, for fields that the text leaves out.
    """
    try:
        before = parse_config(text, model_name=model)
    except InvalidArgument as error:
        raise ConfigTextError(str(error)) from error
    wanted = _wanted(before, values, served, cpu_only=cpu_only)
    changed = [
        field.name
        for field in wanted.DESCRIPTOR.fields
        if _part(before, field.name) != _part(wanted, field.name)
    ]
    made = _replaced(text, {name: _rendered(wanted, name) for name in changed})
    if parse_config(made, model_name=model) != wanted:
        # The scan does not understand this text. Write the whole message, without comments.
        made = text_format.MessageToString(wanted)
    return made


def _wanted(
    before: model_config_pb2.ModelConfig,
    values: Mapping[str, Value],
    served: Mapping[str, Any],
    *,
    cpu_only: bool,
) -> model_config_pb2.ModelConfig:
    document = json_format.MessageToDict(before, preserving_proto_field_name=True)
    if INSTANCES in values and not document.get("instance_group"):
        groups = served.get("instance_group") or [{}]
        kind = groups[0].get("kind")
        document["instance_group"] = [{"kind": kind} if kind else {}]
    if any(name in values for name in (DELAY, PREFERRED)) and served.get("dynamic_batching"):
        document.setdefault("dynamic_batching", {})
    if MAX_BATCH not in values and MAX_BATCH not in document and served.get(MAX_BATCH):
        # Preferred batch sizes, for example, must not exceed max_batch_size.
        document[MAX_BATCH] = served[MAX_BATCH]
    overridden_document = overridden(document, values, cpu_only=cpu_only)
    if MAX_BATCH not in values and not before.max_batch_size:
        overridden_document.pop(MAX_BATCH, None)
    return json_format.ParseDict(overridden_document, model_config_pb2.ModelConfig())


def _part(config: model_config_pb2.ModelConfig, name: str) -> str:
    return _rendered(config, name)


def _rendered(config: model_config_pb2.ModelConfig, name: str) -> str:
    alone = model_config_pb2.ModelConfig()
    alone.CopyFrom(config)
    for field in config.DESCRIPTOR.fields:
        if field.name != name:
            alone.ClearField(field.name)
    return text_format.MessageToString(alone).rstrip("\n")


def _replaced(text: str, rendered: Mapping[str, str]) -> str:
    """Put each field where it first occurs in the text, or at the end if it does not occur."""
    missing = dict(rendered)
    parts, at = [], 0
    for field in _fields(text):
        if field.name not in rendered:
            continue
        parts.append(text[at : field.begin])
        parts.append(missing.pop(field.name, ""))
        at = field.end
        if not parts[-1] and text[at : at + 1] == "\n" and text[: field.begin].endswith("\n"):
            at += 1
    parts.append(text[at:])
    replaced_text = "".join(parts)
    for field_text in filter(None, missing.values()):
        replaced_text = (
            f"{replaced_text.rstrip()}\n{field_text}\n"
            if replaced_text.strip()
            else f"{field_text}\n"
        )
    return replaced_text


def _fields(text: str) -> Iterator[_Field]:
    at = 0
    while (at := _skipped(text, at)) < len(text):
        match = _NAME.match(text, at)
        if match is None:
            at += 1
            continue
        begin, at = at, _skipped(text, match.end())
        if text[at : at + 1] == ":":
            at = _skipped(text, at + 1)
        at = _value_end(text, at)
        yield _Field(match.group(), begin, at)


def _skipped(text: str, at: int) -> int:
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            break
    return at


def _value_end(text: str, at: int) -> int:
    if text[at : at + 1] in _OPEN:
        return _bracket_end(text, at)
    if text[at : at + 1] in "\"'":
        end = _string_end(text, at)
        # Adjacent strings form one value.
        while text[(after := _skipped(text, end)) : after + 1] in ('"', "'"):
            end = _string_end(text, after)
        return end
    while at < len(text) and not text[at].isspace() and text[at] not in ",;#":
        at += 1
    return at


def _bracket_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        letter = text[at]
        if letter in "\"'":
            at = _string_end(text, at)
            continue
        if letter == "#":
            at = _skipped(text, at)
            continue
        if letter in _OPEN:
            depth += 1
        elif letter in _OPEN.values():
            depth -= 1
        at += 1
        if depth == 0:
            break
    return at


def _string_end(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1
