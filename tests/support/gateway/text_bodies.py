"""Bodies of OpenAI's API and its relatives: one of each type, and what their handlers do first."""

from __future__ import annotations

from typing import Any

from nereid_gateway.extras.openai.bodies import Body, texts_of
from nereid_gateway.extras.openai.conversations import read_input
from nereid_gateway.extras.openai.endpoints.chat import ChatBody
from nereid_gateway.extras.openai.endpoints.completions import CompletionsBody
from nereid_gateway.extras.openai.endpoints.decisions import DecisionBody
from nereid_gateway.extras.openai.endpoints.embeddings import EmbeddingsBody
from nereid_gateway.extras.openai.endpoints.messages import MessagesBody
from nereid_gateway.extras.openai.endpoints.ranking import RerankBody
from nereid_gateway.extras.openai.endpoints.responses import ResponsesBody, messages_of, tools_of
from nereid_gateway.extras.openai.generation.messages import template_messages, template_tools

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"a": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
]
# By the route and the type of its body, with most of its fields.
BODIES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/chat/completions": (
        ChatBody,
        {
            "messages": _CHAT,
            "tools": [{"type": "function", "function": {"name": "w", "parameters": _SCHEMA}}],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "chat_template_kwargs": {"a": 1},
            "max_completion_tokens": 5,
            "stop": ["x"],
            "n": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "/v1/completions": (
        CompletionsBody,
        {"prompt": ["a", "b"], "max_tokens": 5, "echo": True, "stop": "x"},
    ),
    "/v1/responses": (
        ResponsesBody,
        {
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "1", "name": "w", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "rain"},
            ],
            "max_output_tokens": 5,
            "text": {"format": {"type": "text"}},
            "tools": [{"type": "function", "name": "w", "parameters": _SCHEMA}],
            "tool_choice": "none",
            "stream": True,
        },
    ),
    "/v1/messages": (
        MessagesBody,
        {
            "max_tokens": 5,
            "system": [{"type": "text", "text": "be brief"}],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "name": "w", "input": {"a": 1}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}],
                },
            ],
            "stop_sequences": ["x"],
            "stream": True,
        },
    ),
    "/v1/decisions": (
        DecisionBody,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "cat"}]},
                {"type": "function_call", "call_id": "1", "name": "w", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "rain"},
            ],
            "questions": [
                {"type": "predicate", "instructions": "rain", "name": "a"},
                {
                    "type": "choice",
                    "instructions": "who",
                    "choices": [{"value": "cat"}, {"value": True}],
                },
                {
                    "type": "score",
                    "instructions": [{"type": "input_text", "text": "how"}],
                    "levels": [{"label": "low"}, {"label": "high", "description": "x"}],
                },
            ],
        },
    ),
    "/v1/embeddings": (EmbeddingsBody, {"input": ["cat", "dog"], "encoding_format": "base64"}),
    "/v1/rerank": (RerankBody, {"query": "cat", "documents": ["dog", {"text": "cat"}]}),
}


def prepare(body: Body) -> None:
    """Do what handlers do with a body before they know the model."""
    match body:
        case ChatBody():
            body.check()
            template_messages(body.messages)
            template_tools(body.functions_of_tools(), "tools")
            body.sampling()
            assert body.includes_usage in {True, False}
            if body.response_format is not None:
                body.response_format.schema()
        case CompletionsBody():
            body.sampling()
            texts_of(body.prompt, "prompt")
        case MessagesBody():
            body.check()
            body.sampling()
            body.chat()
            body.functions()
        case ResponsesBody():
            body.check()
            body.schema()
            template_messages(messages_of(body))
            tools_of(body)
        case DecisionBody():
            read_input(body.input)
        case EmbeddingsBody():
            texts_of(body.input)
