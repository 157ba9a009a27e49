"""Fields that bodies with texts share: the texts, the prompt in front of them, their priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from nereid_gateway.extras.openai.bodies import missing, texts_of
from nereid_gateway.extras.openai.calls import TruncationFields
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.messages import Message, template_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.extras.openai.bodies import Body
    from nereid_gateway.extras.openai.calls import TextCall
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel

# A text, texts, tokens, or lists of tokens.
Input = str | list[str | int | list[int]]

# Names of Cohere, NVIDIA and Jina for the prompts that sentence-transformers calls by the key.
_INPUT_TYPES: Final = {
    "query": "query",
    "search_query": "query",
    "passage": "document",
    "document": "document",
    "search_document": "document",
}
_PROMPT_ALIASES: Final = {"document": ("document", "passage")}
# Fields that have an effect on one of the two alone.
_OF_INPUT: Final = ("prompt_name", "input_type")
OF_MESSAGES: Final = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class PromptFields(TruncationFields, kw_only=True):
    """Fields that choose the text which is put in front of each text."""

    prompt_name: str | None = None
    input_type: str | None = None

    def prompt(self, model: TextModel) -> str:
        """Return the text to put in front; raise InvalidParameter for an unknown name."""
        mapping = model.mapping
        prompts = mapping.prompts
        if self.prompt_name is not None:
            return named_prompt(model, self.prompt_name)
        if self.input_type is not None:
            kind = _INPUT_TYPES.get(self.input_type)
            names = (self.input_type, *_PROMPT_ALIASES.get(kind or "", (kind or "",)))
            for name in names:
                if name in prompts:
                    return prompts[name]
            if kind is None:
                raise _unknown_prompt("input_type", self.input_type, model)
            # The model makes no difference between them.
            return ""
        return prompts.get(mapping.default_prompt, "")


class MessageFields(Protocol):
    """Fields that say how a chat template writes messages."""

    add_generation_prompt: bool | None
    continue_final_message: bool
    chat_template_kwargs: dict[str, Any] | None


class InputFields(PromptFields, kw_only=True):
    """Fields of vLLM's bodies: texts, or messages of which the chat template makes one text."""

    model: str | None = None
    input: Input | None = None
    messages: list[Message] | None = None
    # None: special tokens are added to texts, but not to what the template writes.
    add_special_tokens: bool | None = None
    # Messages have these.
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int = 0
    # Accepted without effect.
    user: str | None = None

    async def rows(self, call: TextCall, model: TextModel) -> list[Row]:
        """Return the rows of the texts, or of the messages. Raises InvalidParameter."""
        texts: list[Any]
        if self.messages is None:
            if self.input is None:
                raise missing("input")
            refuse_fields(self, OF_MESSAGES, "messages")
            texts = prompted(texts_of(self.input), self.prompt(model))
            parameter, special = "input", True
        else:
            if self.input is not None:
                raise InvalidParameter("messages", "'input' and 'messages' exclude each other.")
            refuse_fields(self, _OF_INPUT, "input")
            texts = [await text_of_messages(call, model, self, self.messages)]
            parameter, special = "messages", False
        if self.add_special_tokens is not None:
            special = self.add_special_tokens
        return await call.rows(model, texts, self.limit(model, parameter), special=special)


def refuse_fields(body: Body, names: Sequence[str], needed: str) -> None:
    """Raise InvalidParameter for fields that have an effect only with a field that is missing."""
    for name in names:
        if getattr(body, name):
            raise InvalidParameter(name, f"'{name}' needs '{needed}'.")


async def text_of_messages(
    call: TextCall,
    model: TextModel,
    fields: MessageFields,
    messages: list[Message],
    tools: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the text that the model's chat template makes of messages. May raise InvalidParameter.

    tools: as chat templates take them.
    """
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidParameter(
            "continue_final_message",
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
        )
    made = template_messages(messages)
    variables = {
        **(fields.chat_template_kwargs or {}),
        "add_generation_prompt": bool(fields.add_generation_prompt),
    }
    text = await call.chat_text(model, made, tools, variables)
    if fields.continue_final_message:
        # The template has written the end of the message.
        final = made[-1]["content"].strip()
        end = text.rfind(final)
        text = text[: end + len(final)] if end >= 0 else text
    return text


def named_prompt(model: TextModel, name: str) -> str:
    """Return the prompt of a name; raise InvalidParameter for an unknown one."""
    prompts = model.mapping.prompts
    if name not in prompts:
        raise _unknown_prompt("prompt_name", name, model)
    return prompts[name]


def prompted(texts: list[Any], prompt: str) -> list[Any]:
    """Return texts with a prompt in front. Lists of tokens have none."""
    if not prompt or not isinstance(texts[0], str):
        return texts
    return [prompt + text for text in texts]


def priority_of(asked: int) -> int:
    """Return a body's priority; raise InvalidParameter if it is negative."""
    if not 0 <= asked < 1 << 32:
        raise InvalidParameter("priority", "'priority' is from 0 to 4294967295.")
    return asked


def usage(tokens: int) -> dict[str, int]:
    """Return the usage of a call without completion."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _unknown_prompt(parameter: str, name: str, model: TextModel) -> InvalidParameter:
    known = ", ".join(f"'{each}'" for each in sorted(model.mapping.prompts)) or "none"
    return InvalidParameter(
        parameter, f"The model '{model.name}' has no prompt '{name[:100]}'. It has: {known}."
    )
