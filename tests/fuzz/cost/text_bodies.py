"""Bodies of OpenAI's API, decoded and read up to the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from nereid.core.errors import NereidError
from nereid_gateway.extras.openai.bodies import Body, decode
from nereid_gateway.extras.openai.endpoints.chat import ChatBody
from nereid_gateway.extras.openai.endpoints.decisions import DecisionBody
from nereid_gateway.extras.openai.endpoints.messages import MessagesBody
from nereid_gateway.extras.openai.endpoints.responses import ResponsesBody
from tests.fuzz import text_bodies
from tests.fuzz.cost.growing import Growing, Target
from tests.support.gateway.text_bodies import prepare

_SAID = b'{"role":"user","content":"x"}'
_PART = b'{"type":"text","text":"x"}'
_CALL = b'{"type":"function_call","call_id":"1","name":"w","arguments":"{}"}'
_OUTPUT = b'{"type":"function_call_output","call_id":"1","output":"x"}'
_PREDICATE = b'{"type":"predicate","instructions":"x"}'
_CHAT = b'{"model":"m","messages":['
_TOOL_CALL = b'{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"w","arguments":"'
_SCHEMA = b'],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":'
_MESSAGES = b'{"model":"m","max_tokens":1,"messages":['
_USER = b'{"role":"user","content":['


def _prepare(body_type: type[Body]) -> Callable[[bytes], None]:
    def prepare_body(data: bytes) -> None:
        with suppress(NereidError):
            prepare(decode(data, body_type))

    return prepare_body


def _listed(name: str, item: bytes, start: bytes, end: bytes = b"]}") -> Growing:
    return Growing(name, item + b",", start, item + end)


def _numbered(name: str, start: bytes, end: bytes) -> Growing:
    return Growing(name, lambda number: b'"%d":1,' % number, start, end)


def _target(name: str, body_type: type[Body], *growing: Growing) -> Target:
    return Target(
        name,
        _prepare(body_type),
        growing,
        words=tuple(text_bodies.WORDS),
        # Items of some thirty bytes become structs of a few hundred.
        memory_per_byte=200,
        steps_per_byte=25,
    )


CHATS = _target(
    "chats",
    ChatBody,
    _listed("messages", _SAID, _CHAT),
    _listed("parts", _PART, _CHAT + _USER, b"]}]}"),
    Growing("arguments", b'{\\"a\\":', _CHAT + _TOOL_CALL, b'"}}]}]}'),
    _numbered("biases", _CHAT + b'],"logit_bias":{', b'"1":1}}'),
    _listed("stop strings", b'"x"', _CHAT + b'],"stop":['),
    Growing("a schema", b'{"items":', _CHAT + _SCHEMA),
    _numbered("unknown fields", b"{", b'"model":"m"}'),
)
MESSAGES = _target(
    "messages",
    MessagesBody,
    _listed("messages", _SAID, _MESSAGES),
    Growing(
        "results within results",
        b'{"type":"tool_result","tool_use_id":"1","content":[',
        _MESSAGES + _USER,
    ),
)
RESPONSES = _target(
    "responses",
    ResponsesBody,
    _listed("calls", _CALL, b'{"model":"m","input":['),
    _listed("outputs", _OUTPUT, b'{"model":"m","input":['),
)
DECISIONS = _target(
    "decisions",
    DecisionBody,
    _listed("questions", _PREDICATE, b'{"model":"m","input":"x","questions":['),
    _listed("calls", _CALL + b"," + _OUTPUT, b'{"model":"m","questions":[],"input":['),
    Growing(
        "levels",
        b'{"a":',
        b'{"model":"m","questions":[],"input":[' + _USER + b'{"type":"input_json","data":',
    ),
)
