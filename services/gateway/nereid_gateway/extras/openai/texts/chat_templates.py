"""Prompts from messages by a model's chat template.

A template belongs to the model, but a client chooses the messages. So a template runs in Jinja's
sandbox, with limits of steps and of output, and beyond a short time in a decoder process, which is
killed if it takes too long.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jinja2 import Template
    from jinja2.parser import Parser

    from nereid_gateway.plane.data_plane import DataPlane

# Iterations and calls. Typical templates take about ten for each message.
_LOOP_STEPS: Final = 5_000
_MAX_STEPS: Final = 2_000_000
# Characters, of the prompt and of each text on the way to it.
_MAX_OUTPUT: Final = 16 << 20
_MAX_TEMPLATES: Final = 64
_MAX_FACTOR: Final = 10_000


class TemplateRefusedError(Exception):
    """Raised by a template for messages that it does not take."""


class _StepsError(Exception):
    """Raised when a template exceeds its steps or its output."""


class _GenerationTag(Extension):
    """Tag around the text of assistants, which marks it for training and changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 (declared by the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements within the tag."""
        parser.stream.skip()
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Environment of one thread. `steps_left` is set before each run."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        self.steps_left = 0
        self.filters["tojson"] = _to_json
        self.filters["counted"] = self._counted
        self.filters["concatenated"] = self._concatenated
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Return the tree of a template, in which loops and joined texts are counted."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = self._filtered(loop.iter, "counted")
        self._replace_joins(tree)
        return tree

    def _replace_joins(self, node: nodes.Node) -> None:
        """Replace each `a ~ b` by a filter that counts the text which it makes."""
        for name, value in list(node.iter_fields()):
            if isinstance(value, list):
                setattr(node, name, list(map(self._replaced, value)))
            else:
                setattr(node, name, self._replaced(value))

    def _replaced(self, value: Any) -> Any:
        if not isinstance(value, nodes.Node):
            return value
        self._replace_joins(value)
        if isinstance(value, nodes.Concat):
            parts = nodes.List(value.nodes, lineno=value.lineno)
            parts.set_environment(self)
            return self._filtered(parts, "concatenated")
        return value

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self)
        return made

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        """Call a function for a template."""
        self.spend(1)
        return super().call(*arguments, **keywords)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result may be large."""
        if operator == "**" or (
            operator == "%" and isinstance(left, str) and any(map(str.isdigit, left))
        ):
            raise SecurityError(f"the operator {operator} is not available to templates")
        if operator == "*" and not isinstance(left, float) and not isinstance(right, float):
            if max(_size(left), _size(right)) > _MAX_FACTOR:
                raise _StepsError
        elif operator == "+" and isinstance(left, (str, list, tuple)):
            self._make(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def _make(self, size: int) -> None:
        if size > _MAX_OUTPUT:
            raise _StepsError
        self.spend(size >> 8)

    def spend(self, steps: int) -> None:
        """Count steps; raise an error if none are left."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise _StepsError

    def _counted(self, values: Any) -> Any:
        """Return an iterable whose items are counted as they are used."""
        if isinstance(values, (list, tuple, str, dict)):
            # Loops know the length of these.
            self.spend(len(values))
            return values
        return self._count_each(values)

    def _count_each(self, values: Any) -> Iterator[Any]:
        for value in values:
            self.spend(1)
            yield value

    def _concatenated(self, parts: list[Any]) -> str:
        texts = list(map(str, parts))
        self._make(sum(map(len, texts)))
        return "".join(texts)


def _size(value: Any) -> int:
    if isinstance(value, (str, list, tuple)):
        return len(value)
    return abs(value) if isinstance(value, int) else 0


def _to_json(value: Any, indent: int | None = None, **_options: Any) -> str:
    """Return JSON as transformers' templates expect it: without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=min(indent or 0, 16) or None)


def _raise_exception(message: Any) -> None:
    raise TemplateRefusedError(str(message)[:1000])


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).strftime(form[:100])


@lru_cache(_MAX_TEMPLATES)
def _compiled(source: str) -> tuple[_Environment, Template]:
    environment = _Environment()
    return environment, environment.from_string(source)


def check_template(source: str) -> None:
    """Raise InvalidArgument if a template cannot be compiled."""
    try:
        _compiled(source)
    except (TemplateError, RecursionError) as error:
        raise InvalidArgument(f"its chat template cannot be read: {error}") from None


def render_job(
    blobs: Sequence[bytes], source: str, max_steps: int
) -> tuple[str | None, list[bytes]]:
    """Return the prompt of a JSON object of variables, or None if it takes too many steps.

    Raises InvalidArgument if the template fails or refuses the messages.
    """
    return render(source, msgspec.json.decode(blobs[0]), max_steps), []


def render(source: str, variables: Mapping[str, Any], max_steps: int = _MAX_STEPS) -> str | None:
    """Return a template's text, or None if it takes too many steps. May raise InvalidArgument."""
    try:
        environment, template = _compiled(source)
        environment.steps_left = max_steps
        parts = []
        size = 0
        for part in template.generate(variables):
            size += len(part)
            environment.spend(1 + (len(part) >> 8))
            if size > _MAX_OUTPUT:
                return None
            parts.append(part)
        return "".join(parts)
    except _StepsError:
        return None
    except TemplateRefusedError as error:
        raise InvalidArgument(f"the model's chat template refuses the messages: {error}") from None
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the model's chat template cannot write a prompt from the messages: {error}"
        ) from None
    except (RecursionError, MemoryError, AttributeError) as error:
        raise InvalidArgument(
            f"the model's chat template failed with {type(error).__name__}"
        ) from None


class TemplateRenderer:
    """Renders templates: briefly on the event loop, else in a decoder process."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._decoding = data_plane.decoding
        self._decoders = data_plane.decoders

    async def render(self, peer: str, source: str, variables: Mapping[str, Any]) -> str:
        """Return the prompt. Raises InvalidArgument."""
        text = msgspec.json.encode(variables)
        prompt: str | None
        prompt, _ = await self._decoding.run_text_job(peer, text, render_job, source, _LOOP_STEPS)
        if prompt is None:
            prompt, _ = await self._decoders.run(peer, render_job, source, _MAX_STEPS, blobs=[text])
        if prompt is None:
            raise InvalidArgument(
                "the model's chat template takes too many steps, or writes too much, for the"
                " messages"
            )
        return prompt
