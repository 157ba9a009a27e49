"""Calls of OpenAI's API that are dear to decode, to tokenize or to answer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.support.hostile.attack import ANY, ENDED, REFUSED, Attack, Client, Target
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.sending import http_body

_MIB = 1 << 20
_WRONG = re.compile("status 400")
_EMBEDDINGS = "/v1/embeddings"
_CHAT = "/v1/chat/completions"


def _body(model: str = "texts", **fields: Any) -> bytes:
    return json.dumps({"model": model, **fields}, separators=(",", ":")).encode()


def _call(path: str = _EMBEDDINGS, model: str = "texts", **fields: Any) -> Client:
    return http_body(lambda: _body(model, **fields), path)


def _list_of(item: bytes, count: int) -> Client:
    def make() -> bytes:
        return b'{"model":"texts","input":[%b]}' % b",".join([item] * count)

    return http_body(make, _EMBEDDINGS)


def _chat(**fields: Any) -> Client:
    messages = [{"role": "user", "content": "hello"}]
    return http_body(lambda: _body("logits", **{"messages": messages, **fields}), _CHAT)


def _schema(schema: dict[str, Any]) -> Client:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _chat(response_format=form, max_tokens=4)


def _demanded(schema: dict[str, Any], count: int) -> Client:
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}
        for number in range(count)
    ]
    return _chat(tools=tools, tool_choice="required", max_tokens=4)


def _doubled(levels: int) -> dict[str, Any]:
    """A schema that has each level twice in the next."""
    definitions: dict[str, Any] = {"level0": {"type": "string"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/level{level - 1}"}
        definitions[f"level{level}"] = {"anyOf": [below, {"type": "array", "items": below}]}
    return {"$ref": f"#/$defs/level{levels - 1}", "$defs": definitions}


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def _unread(target: Target) -> str:
    """Large responses that nobody reads."""
    request = post(_EMBEDDINGS, _body(input=["the cat"] * 2048))
    with ExitStack() as stack:
        clients = [HttpClient(target.http, target.source, receive_bytes=4096) for _ in range(20)]
        for client in clients:
            stack.callback(client.close)
            client.socket.setblocking(True)
            client.socket.sendall(request)
        time.sleep(3)
    return "waiting"


def _abandoned(path: str, make: Callable[[], bytes]) -> Client:
    """Clients that leave as soon as they have asked."""

    def client(target: Target) -> str:
        request = post(path, make())
        for _ in range(50):
            connection = HttpClient(target.http, target.source)
            # A stream has begun by then, and vectors are being computed.
            connection.pump(request, until=lambda: bool(connection.head), limit_s=0.05)  # noqa: B023
            connection.abort()
        return "closed"

    return client


def _thousand_texts() -> bytes:
    return _body(input=[f"the cat {number}" for number in range(1000)])


def _many_choices() -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return _body("logits", messages=messages, n=128, max_tokens=200, stream=True)


def _form(part: bytes, count: int) -> Client:
    return http_body(
        lambda: b"\r\n".join([b"--x\r\n" + part] * count) + b"\r\n--x--",
        "/v1/audio/transcriptions",
        "Content-Type: multipart/form-data; boundary=x",
    )


def _required_tool(parameters: dict[str, Any]) -> Client:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return _chat(tools=tools, tool_choice="required", max_tokens=4)


_WORD = "a" * (8 * _MIB)
_LONG_TEXT = "the cat " * (_MIB // 8)

ATTACKS = (
    Attack("texts 8 MB of one word", _call(input=_WORD), _WRONG),
    Attack("texts 1 MB of one word", _call(input=_WORD[:_MIB]), ENDED),
    Attack(
        "texts 1 MB of letters, truncated",
        _call(input="a " * (_MIB // 2), truncate=True),
        ENDED,
        # Half a million tokens of a library's, before they are cut.
        more_mib=200,
    ),
    Attack(
        "texts 512 of 8 kB, truncated",
        _call(input=[_LONG_TEXT[:8192]] * 512, truncate=True),
        ENDED,
        more_mib=200,
    ),
    Attack(
        "texts 2,048 pairs with a query of 1 MB",
        _call(
            "/v1/rerank",
            "ranker",
            query=_LONG_TEXT,
            documents=["rain"] * 2048,
            truncate=True,
        ),
        _WRONG,
    ),
    Attack(
        "texts 500 documents to be shortened",
        _call(
            "/v2/rerank",
            "ranker",
            query="rain",
            documents=[_LONG_TEXT[:8192]] * 500,
            max_tokens_per_doc=4,
        ),
        ENDED,
        more_mib=200,
    ),
    Attack("texts 10,000", _list_of(b'"the cat"', 10_000), _WRONG),
    Attack("texts 4 million empty lists", _list_of(b"[]", 4 * _MIB), _WRONG),
    Attack("texts 1 million token ids", _list_of(b"7", _MIB), _WRONG),
    Attack("texts 1 million lists of token ids", _list_of(b"[7]", _MIB), _WRONG),
    Attack("texts token ids out of range", _list_of(b"[9999999999]", 2048), _WRONG),
    Attack("texts numbers of a million digits", _list_of(b"9" * _MIB, 1), _WRONG),
    Attack(
        "texts deep lists",
        http_body(lambda: b'{"model":"texts","input":' + b"[" * 400_000, _EMBEDDINGS),
        _WRONG,
    ),
    Attack(
        "texts 200,000 unknown fields",
        http_body(
            lambda: (
                b'{"model":"texts","input":"a",%b}'
                % b",".join(b'"f%d":0' % number for number in range(200_000))
            ),
            _EMBEDDINGS,
        ),
        _WRONG,
    ),
    Attack("texts a model's name of 1 MB", _call(model="m" * _MIB, input="a"), REFUSED),
    Attack("texts 1 million tokens to detokenize", _call("/detokenize", tokens=[7] * _MIB), ENDED),
    Attack("texts 1 million stop strings", _chat(stop=["stop"] * _MIB), _WRONG),
    Attack("texts 1 million tools", _chat(tools=[{}] * _MIB), nightly=True),
    Attack("texts responses that nobody reads", _unread, ANY),
    Attack("texts clients that leave", _abandoned(_EMBEDDINGS, _thousand_texts), ANY),
    Attack(
        "texts clients that leave their streams",
        _abandoned(_CHAT, _many_choices),
        ANY,
        more_mib=200,
    ),
    Attack("texts a form of 1 million parts", _form(b"\r\n", _MIB), _WRONG),
    Attack(
        "texts a form with a header of 8 MB",
        _form(b"Content-Disposition: form-data" + b";" * (8 * _MIB) + b"\r\n\r\n", 1),
        _WRONG,
    ),
    Attack(
        "texts a required tool with a large pattern",
        _required_tool({"properties": {"a": {"pattern": "((a{1,500}){1,500}){1,500}"}}}),
        ENDED,
    ),
    Attack("texts 1 million messages", _chat(messages=[{"role": "user", "content": "x"}] * _MIB)),
    Attack(
        "texts 1 million messages as input",
        _call(messages=[{"role": "user", "content": "x"}] * _MIB),
        _WRONG,
    ),
    Attack(
        "texts 2,048 vectors in all forms",
        _call(
            "/v2/embed",
            texts=["the cat"] * 2048,
            embedding_types=["float", "base64", "binary", "ubinary"] * 1000,
        ),
        ENDED,
    ),
    Attack("texts 1 million biases", _chat(logit_bias={str(n): 1 for n in range(_MIB)})),
    Attack("texts a schema of 2 to the 64", _schema(_doubled(64)), ENDED),
    Attack("texts a schema of 900 levels", _schema(_nested(900)), ENDED),
    Attack(
        "texts a demanded call of 128 tools with schemas of 2 to the 64",
        _demanded(_doubled(64), 128),
        ENDED,
        more_mib=100,
    ),
    Attack(
        "texts a schema with a large pattern",
        _schema({"type": "string", "pattern": "((a{1,500}){1,500}){1,500}"}),
        ENDED,
    ),
    Attack(
        "texts a schema of a million properties",
        _schema({"type": "object", "properties": {f"p{n}": {} for n in range(_MIB // 4)}}),
        ENDED,
        nightly=True,
    ),
)
