"""Calls of OpenAI's API that are dear to decode, to tokenize or to answer."""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack
from typing import Any

from tests.support.hostile.attack import ANY, ENDED, REFUSED, Attack, Client, Target
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.sending import http_body

_MIB = 1 << 20
_WRONG = re.compile("status 400")
_EMBEDDINGS = "/v1/embeddings"
# Also where no model generates, or the route is missing: what counts is what it costs others.
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
    return http_body(lambda: _body(messages=messages, **fields), _CHAT)


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


def _abandoned(target: Target) -> str:
    """Clients that leave as soon as they have asked for a thousand texts."""
    request = post(_EMBEDDINGS, _body(input=[f"the cat {number}" for number in range(1000)]))
    for _ in range(50):
        client = HttpClient(target.http, target.source)
        client.socket.setblocking(True)
        client.socket.sendall(request)
        client.abort()
    return "closed"


_WORD = "a" * (8 * _MIB)
_LONG_TEXT = "the cat " * (_MIB // 8)

ATTACKS = (
    Attack("texts 8 MB of one word", _call(input=_WORD), _WRONG),
    Attack("texts 1 MB of one word", _call(input=_WORD[:_MIB]), ENDED),
    Attack(
        "texts 1 MB of letters, truncated", _call(input="a " * (_MIB // 2), truncate=True), ENDED
    ),
    Attack(
        "texts 2,048 of 8 kB, truncated",
        _call(input=[_LONG_TEXT[:8192]] * 2048, truncate=True),
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
        "texts 2,000 documents to be shortened",
        _call(
            "/v2/rerank",
            "ranker",
            query="rain",
            documents=[_LONG_TEXT[:8192]] * 2000,
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
    Attack("texts 1 million stop strings", _chat(stop=["stop"] * _MIB), REFUSED),
    Attack("texts 1 million tools", _chat(tools=[{}] * _MIB), REFUSED, nightly=True),
    Attack("texts responses that nobody reads", _unread, ANY),
    Attack("texts clients that leave", _abandoned, ANY),
)
