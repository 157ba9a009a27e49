"""A mesh with small models for published tests, and texts that several suites send."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai

from tests.support.mesh.mesh import Mesh
from tests.support.models import text_models
from tests.support.models.text_models import BareModel

LABELS = ("safe", "toxic", "spam")
TEXT = "the cat sat on the mat"
QUERIES = ["the cat", "the dog"]
DOCUMENTS = ["cat sat", "rain rose"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }} mat {% endfor %}"
    "{% if add_generation_prompt %}query :{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "the cat sat"},
    {"role": "assistant", "content": "rain rose"},
    {"role": "user", "content": "the dog"},
]
PROMPT = "user: the cat sat mat assistant: rain rose mat user: the dog mat "
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Kiel"}}\n</tool_call>'
ANTHROPIC_TOOL: Any = {
    "name": "get_weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}},
}


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}


class Site(NamedTuple):
    mesh: Mesh
    repository: Path
    http: httpx.Client
    client: openai.OpenAI
    anthropic: anthropic.Anthropic

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mesh.http_port}"

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        """The JSON of a call, which has to have this status."""
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    def bare(self, model: str) -> BareModel:
        return BareModel(self.repository / model)


def encode(text: str, pair: str | None = None) -> list[int]:
    ids: list[int] = text_models.tokenizer().encode(text, pair).ids
    return ids


def user(content: Any) -> Any:
    return [{"role": "user", "content": content}]
