"""Bodies of OpenAI's API: each is taken, or refused by an error of the API's form."""

from __future__ import annotations

import json

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.bodies import decode
from nereid_gateway.extras.openai.errors import error_members
from tests.support.gateway.text_bodies import BODIES, prepare

MAX_BYTES = 4096
_TYPES = [body_type for body_type, _ in BODIES.values()]
# The first byte is the type.
SEEDS = [
    bytes((number,)) + json.dumps({"model": "m", **fields}, separators=(",", ":")).encode()
    for number, (_, fields) in enumerate(BODIES.values())
]
WORDS = [
    *(b'"role":', b'"content":', b'"type":', b'"text":', b'"tool_calls":', b'"function":'),
    *(b'"arguments":', b'"name":', b'"input":', b'"stop":', b'"logit_bias":{"1":1}', b'"n":'),
    *(b'"response_format":', b'"json_schema":', b'"schema":{}', b'"questions":', b'"choices":'),
    *(b'"input_json"', b'"data":', b'"user"', b'"assistant"', b'"tool"', b'"image_url"'),
    *(b"[", b"]", b"{", b"}", b",", b"null", b"true", b"-1", b"1e999", b"\\ud800", b"\\u0000"),
]


def run(data: bytes) -> None:
    if not data:
        return
    try:
        prepare(decode(data[1:], _TYPES[data[0] % len(_TYPES)]))
    except InvalidArgument as error:
        members = error_members(error)
        assert members["type"] == "invalid_request_error"
        assert members["message"]
        json.dumps(members).encode()
