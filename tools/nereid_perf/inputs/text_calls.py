"""Bodies of calls to OpenAI's API and its relatives, made of texts or read from files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid_perf.inputs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_perf.inputs.plan import InputPlan, ModelPlan

    # Makes a body of texts, of which there are as many as --batch-size says.
    MakeBody = Callable[[list[str]], dict[str, Any]]

_MAX_FILE_BYTES: Final = 1 << 28
_WORDS: Final = (
    *("the", "of", "and", "to", "in", "is", "that", "it", "was"),
    *("for", "on", "are", "with", "they", "be", "at", "this", "have"),
    *("from", "or", "one", "had", "by", "word", "but", "not", "what"),
    *("all", "were", "we", "when", "your", "can", "said", "there", "each"),
    *("which", "she", "do", "how", "their", "if", "will", "up", "other"),
    *("about", "out", "many", "then", "them", "these", "so", "some", "her"),
    *("would", "make", "like", "him", "into", "time", "has", "look", "two"),
    *("more", "write", "go", "see", "number", "no", "way", "could", "people"),
    *("than", "first", "water", "been", "call", "who", "oil", "its", "now"),
    *("find", "long", "down", "day", "did", "get", "come", "made", "may"),
    *("part", "river", "market", "engine", "winter", "letter"),
)


class TextEndpoint(NamedTuple):
    """An endpoint of the API. rows_field: the list of the texts that count as rows, if any."""

    path: str
    rows_field: str
    make_body: MakeBody
    can_stream: bool = False


def _list(field: str, texts: list[str]) -> dict[str, Any]:
    return {field: texts if len(texts) > 1 else texts[0]}


def _rerank(texts: list[str]) -> dict[str, Any]:
    return {"query": " ".join(texts[0].split()[:8]), "documents": texts}


def _decisions(texts: list[str]) -> dict[str, Any]:
    questions = [{"type": "predicate", "instructions": text} for text in texts]
    return {"input": texts[0], "questions": questions}


def _chat(texts: list[str]) -> dict[str, Any]:
    if len(texts) > 1:
        raise InputError("-b: a call of chat has one conversation: leave the batch size at 1")
    return {"messages": [{"role": "user", "content": texts[0]}]}


ENDPOINTS: Final = {
    "embeddings": TextEndpoint("/v1/embeddings", "input", partial(_list, "input")),
    "rerank": TextEndpoint("/v1/rerank", "documents", _rerank),
    "decisions": TextEndpoint("/v1/decisions", "questions", _decisions),
    "completions": TextEndpoint(
        "/v1/completions", "prompt", partial(_list, "prompt"), can_stream=True
    ),
    "chat": TextEndpoint("/v1/chat/completions", "", _chat, can_stream=True),
}


def endpoint_path(text: str) -> str:
    """Return the path of an endpoint's name, or of a path in perf_analyzer's form."""
    if not text:
        return ""
    known = ENDPOINTS.get(text)
    if known is not None:
        return known.path
    path = f"/{text.lstrip('/')}"
    if "/" not in text or not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"expected {', '.join(ENDPOINTS)}, or a path such as v1/embeddings")
    return path


def _endpoint_at(path: str) -> TextEndpoint | None:
    """Return the endpoint at a path, which may have a prefix such as /openai."""
    return next((each for each in ENDPOINTS.values() if path.endswith(each.path)), None)


class TextCall:
    """The body of a call, in the place of an inference request's template."""

    def __init__(self, body: bytes, rows: int) -> None:
        self.rows = rows
        self._body = body

    def encode(self, _request_id: bytes = b"", _sequence: bytes = b"") -> tuple[bytes, int]:
        """Return the body; it has no tensors behind its JSON."""
        return self._body, 0


def make_calls(plan: InputPlan, index: int) -> list[TextCall]:
    """Return the calls to a model, which are the same in every process. May raise InputError."""
    model = plan.models[index]
    endpoint = _endpoint_at(plan.path)
    if plan.streams and (endpoint is None or not endpoint.can_stream):
        raise InputError("--streaming: only chat and completions have streams")
    if model.input_data == ("random",):
        bodies = _random_bodies(plan, index, endpoint)
    else:
        bodies = [body for name in model.input_data for body in _read_bodies(name)]
    fields = _fields_of(model)
    if plan.streams:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    rows_field = endpoint.rows_field if endpoint is not None else ""
    return [_call({**body, **fields}, rows_field) for body in bodies]


def _fields_of(model: ModelPlan) -> dict[str, Any]:
    fields: dict[str, Any] = dict(model.parameters)
    if model.name:
        fields["model"] = f"{model.name}/{model.version}" if model.version else model.name
    if model.priority:
        fields["priority"] = model.priority
    return fields


def _call(body: dict[str, Any], rows_field: str) -> TextCall:
    rows = body.get(rows_field)
    content = json.dumps(body, separators=(",", ":")).encode()
    return TextCall(content, len(rows) if isinstance(rows, list) else 1)


def _random_bodies(
    plan: InputPlan, index: int, endpoint: TextEndpoint | None
) -> list[dict[str, Any]]:
    model = plan.models[index]
    if endpoint is None:
        raise InputError(f"--endpoint {plan.path}: give the bodies, in a file with --input-data")
    random = Random(f"{plan.seed}/{index}")  # noqa: S311 - no secret
    return [
        endpoint.make_body([_text(model, random) for _ in range(model.batch_size)])
        for _ in range(plan.distinct_inputs)
    ]


def _text(model: ModelPlan, random: Random) -> str:
    """Return a text of --string-length characters, or --string-data."""
    if model.string_data is not None:
        return model.string_data
    words, length = [], -1
    while length < model.string_length:
        words.append(random.choice(_WORDS))
        length += len(words[-1]) + 1
    # A space at the end may not count as a character.
    text = " ".join(words)[: model.string_length]
    return text[:-1] + "s" if text.endswith(" ") else text


def _read_bodies(name: str) -> list[dict[str, Any]]:
    """Return the payloads of a file in perf_analyzer's form."""
    expected = InputError(f'{name}: expected {{"data": [{{"payload": [{{...}}]}}]}}')
    try:
        with Path(name).open("rb") as file:
            document = json.loads(file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: expected JSON: {error}") from None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise expected
    bodies: list[dict[str, Any]] = []
    for entry in entries:
        payload = entry.get("payload") if isinstance(entry, dict) else None
        payloads = payload if isinstance(payload, list) else [payload]
        if not payloads or not all(isinstance(body, dict) for body in payloads):
            raise expected
        bodies += (body for body in payloads if body is not None)
    return bodies
