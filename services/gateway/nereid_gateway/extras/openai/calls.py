"""Steps that all endpoints share: the body, the model and the right to use it, rows, errors."""

from __future__ import annotations

import asyncio
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from nereid.core.errors import NereidError, NotFound, Unavailable
from nereid.core.wire.messages import payload_bytes
from nereid.rpc.net.limits.budget import OverBudgetError
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.access.refusal import CallRefused
from nereid_gateway.core.retry_hints import over_budget
from nereid_gateway.extras.openai.bodies import Body
from nereid_gateway.extras.openai.errors import InvalidParameter, NoModelFits, fail_call
from nereid_gateway.extras.openai.texts.outputs import OutputReader
from nereid_gateway.extras.openai.texts.rows import MAX_IN_FLIGHT
from nereid_gateway.extras.openai.texts.text_models import rows_of, split_name
from nereid_gateway.extras.openai.texts.tokenizer import TokenLimit
from nereid_gateway.guards.policy.http_guard import response_of
from nereid_gateway.server.call import JSON

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.extras.openai.bodies import BodyReader, Decoded
    from nereid_gateway.extras.openai.metrics import CallMetrics
    from nereid_gateway.extras.openai.texts.chat_templates import TemplateRenderer
    from nereid_gateway.extras.openai.texts.rows import Row, RowSubmission
    from nereid_gateway.extras.openai.texts.text_models import TextModel, TextModels
    from nereid_gateway.extras.openai.texts.tokenizer import TextTokenizer
    from nereid_gateway.extras.openai.work_pool import WorkPool
    from nereid_gateway.server.call import HttpCall

Result = TypeVar("Result")
Output = TypeVar("Output")

# Characters of texts that are tokenized on the event loop: that takes about as long as a thread's
# wake-up.
_LOOP_CHARACTERS: Final = 1024
# Texts of one job, after which other clients have their turn.
_JOB_CHARACTERS: Final = 128 << 10
_JOB_TEXTS: Final = 256
# Characters of a call's texts, as many as the largest body may have. A query counts for each of its
# documents.
_MAX_CHARACTERS: Final = 64 << 20
# Limit of tokens for models whose files say none.
_MAX_TOKENS: Final = 131_072
# How often a call is done again because its model was replaced meanwhile.
_MAX_REPEATS: Final = 3
# Models that are looked at for a body that names none.
_MAX_CHOICES: Final = 64


class TruncationFields(Body, kw_only=True):
    """Fields that say what happens to texts with too many tokens."""

    # TEI's, and those of Cohere and NVIDIA.
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    # vLLM's. -1: the model's limit.
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    # TEI's.
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None

    def limit(self, model: TextModel, parameter: str) -> TokenLimit:
        """Return the limit of each text's tokens. parameter: has the texts, for errors."""
        most = model.mapping.max_tokens or _MAX_TOKENS
        asked = self.truncate_prompt_tokens
        if asked is None:
            truncates = self.truncate not in (None, False, "NONE")
        else:
            if asked < -1 or asked == 0 or asked > most:
                raise InvalidParameter(
                    "truncate_prompt_tokens",
                    f"'truncate_prompt_tokens' is {asked}, but model '{model.name}' takes 1 to"
                    f" {most} tokens; -1 stands for its limit.",
                )
            truncates = True
            most = most if asked == -1 else asked
        side = self.truncation_side or (self.truncation_direction or "right").lower()
        if self.truncate == "START":
            side = "left"
        return TokenLimit(most, truncates, side, parameter)


class TextCall:
    """A call of a client, with what its handler needs."""

    def __init__(self, services: TextServices, call: HttpCall) -> None:
        self._services = services
        self.call = call
        # Times are of monotonic().
        self.called_s = monotonic()
        # Name of the model that serves the call, and the number of its tokens.
        self.model_name = ""
        self.tokens = 0
        # Number of tokens that the model generated.
        self.output_tokens = 0
        # Time of the first of them; 0 if there is none.
        self.begun_s = 0.0
        self.priority = 0
        # When the texts of the call's rows began and ended to be tokenized.
        self._tokenized_ns = (0, 0)
        # Further lines of the response's head, and the type of its body.
        self.header_lines = b""
        self.content_type = JSON

    async def read_body(self, body_type: type[Decoded]) -> Decoded:
        """Return the call's body."""
        return await self._services.bodies.read(self.call, body_type)

    async def read_content(self) -> bytes | memoryview:
        """Return the call's body as it is, but decompressed."""
        await self._services.bodies.decompress(self.call)
        return self.call.body

    async def with_model(
        self,
        name: str | None,
        tasks: Collection[str],
        work: Callable[[TextModel], Awaitable[Result]],
    ) -> Result:
        """Return the result of work with a model that has one of the tasks.

        name: None for the only one that has. If the version is replaced meanwhile, the work is done
        again with the new one: rows of two versions are never mixed.
        """
        model = await self._find(name, tasks)
        for _ in range(_MAX_REPEATS):
            try:
                return await work(model)
            except (NotFound, Unavailable):
                model.expire()
                newer = await self._find(name, tasks)
                if newer is model:
                    raise
                model = newer
        return await work(model)

    async def rows(
        self,
        model: TextModel,
        texts: Sequence[Any],
        limit: TokenLimit,
        *,
        special: bool = True,
    ) -> list[Row]:
        """Return the rows of texts, pairs of texts, or lists of token ids.

        special: whether special tokens are added to texts.
        """
        begun_ns = monotonic_ns()
        sizes = [*map(_size_of, texts)]
        characters = sum(sizes)
        if characters > _MAX_CHARACTERS:
            raise InvalidParameter(
                limit.parameter,
                f"The texts, or pairs of texts, have {characters} characters together, more than"
                f" {_MAX_CHARACTERS}; send several requests.",
            )
        if model.is_read() and characters <= _LOOP_CHARACTERS:
            rows = rows_of(model, texts, limit, special=special)
        else:
            rows = []
            # One job at a time: with two at once on two cores, a text of another client waited for
            # 190 ms rather than 4, and the call itself was hardly faster.
            for begin, end, size in split_jobs(sizes):
                job = texts[begin:end]

                def tokenize(job: Sequence[Any] = job, begin: int = begin) -> list[Row]:
                    return rows_of(model, job, limit, special=special, first=begin)

                rows += await self._services.pool.run(self.call, size, tokenize)
        self.hold_rows(rows, begun_ns)
        return rows

    def hold_rows(self, rows: Sequence[Row], begun_ns: int) -> None:
        """Hold a call's rows instead of its body, and count their tokens.

        begun_ns: when their texts began to be tokenized.
        """
        self._tokenized_ns = begun_ns, monotonic_ns()
        self.call.free_body()
        self.call.hold(sum(payload_bytes(payload) for row in rows for payload in row.payloads))
        self.tokens = sum(row.tokens for row in rows)

    async def infer(
        self,
        rows: Sequence[Row],
        read: Callable[[InferResponse, Row], Output],
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> list[Output]:
        """Return what `read` makes of each row's response, in the order of the rows."""
        return await self._services.rows.infer(
            self.call,
            rows,
            read,
            priority=self.priority,
            tokenized_ns=self._tokenized_ns,
            max_in_flight=max_in_flight,
        )

    def end_sequence(self, row: Row) -> None:
        """End the sequence to which a row belongs."""
        self._services.rows.end_sequence(self.call, row)

    async def chat_text(
        self,
        model: TextModel,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> str:
        """Return the text that the model's chat template makes of messages.

        The template writes special tokens itself. variables: further ones of the template. Raises
        InvalidParameter without a template.
        """
        mapping = model.mapping
        if not mapping.chat_template:
            raise InvalidParameter(
                "messages",
                f"The model '{model.name}' has no chat template. Send text instead, or add"
                " chat_template.jinja to its directory.",
                "model_not_supported",
            )
        values = {
            **mapping.special_tokens,
            "add_generation_prompt": True,
            **variables,
            "messages": messages,
            "tools": tools or None,
        }
        renderer = self._services.renderer
        return await renderer.render(self.call.peer, mapping.chat_template, values)

    async def tokenizer(self, model: TextModel) -> TextTokenizer:
        """Return a model's tokenizer."""
        return await self._services.models.load_tokenizer(self.call, model)

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of work on `size` bytes, which a thread does if it is much."""
        if size <= _LOOP_CHARACTERS:
            return work()
        return await self.in_thread(size, work)

    async def in_thread(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of work on `size` bytes, which a thread does."""
        return await self._services.pool.run(self.call, size, work)

    async def _find(self, name: str | None, tasks: Collection[str]) -> TextModel:
        models = self._services.models
        if name is None:
            model = await self._only_one(tasks)
        else:
            if self.call.check_model is not None:
                self.call.check_model(split_name(name)[0])
            model = await models.get(name)
        self.model_name = model.name
        if not model.mapping.tasks.isdisjoint(tasks):
            return model
        raise InvalidParameter(
            "model",
            f"The model '{model.name}' cannot do this. It can: {_listed(model.mapping.tasks)}.",
            "model_not_supported",
        )

    async def _only_one(self, tasks: Collection[str]) -> TextModel:
        fitting = []
        models = self._services.models
        names = await permitted_names(self.call, models)
        if len(names) > 1:
            loaded = await models.loaded_names()
            names = [name for name in names if name in loaded][:_MAX_CHOICES]
        for name in names:
            try:
                model = await models.find(name)
            except NereidError:
                # It was unloaded meanwhile, or its text.json is wrong.
                continue
            if model is not None and not model.mapping.tasks.isdisjoint(tasks):
                fitting.append(model)
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise NoModelFits(_listed(tasks))
        raise InvalidParameter(
            "model",
            f"Several models can do this, so 'model' has to name one:"
            f" {_listed([model.name for model in fitting])}.",
            "missing_required_parameter",
        )


class TextServices:
    """Parts that the handlers of all endpoints share."""

    def __init__(  # noqa: PLR0913, PLR0917 - called once
        self,
        bodies: BodyReader,
        models: TextModels,
        rows: RowSubmission,
        pool: WorkPool,
        metrics: CallMetrics,
        renderer: TemplateRenderer,
    ) -> None:
        self.bodies = bodies
        self.renderer = renderer
        self.models = models
        self.rows = rows
        self.pool = pool
        self.metrics = metrics
        self.outputs = OutputReader()

    async def serve(
        self,
        call: HttpCall,
        operation: str,
        handle: Callable[[TextCall], Awaitable[Sequence[bytes]]],
    ) -> None:
        """Respond to a call with the body that `handle` returns in parts, or with its error.

        operation: the name of the operation in metrics.
        """
        call.received_ns = monotonic_ns()
        text_call = TextCall(self, call)
        failure = ""
        try:
            body, line = await self.bodies.encode(call, await handle(text_call))
            extra = line + text_call.header_lines
            call.respond(200, body, text_call.content_type, extra)
        except CallRefused as refused:
            failure = refused.refusal.reason.value
            status, message, lines = response_of(refused.refusal)
            call.fail(status, message, extra=lines)
        except OverBudgetError as error:
            failure = "Unavailable"
            fail_call(call, over_budget(error))
        except NereidError as error:
            failure = type(error).__name__
            fail_call(call, error, text_call.header_lines)
        except asyncio.CancelledError:
            failure = "Cancelled"
            raise
        except Exception:
            failure = "Internal"
            raise
        finally:
            ended_s = monotonic()
            seconds = ended_s - text_call.called_s
            self.metrics.add_call(operation, text_call.model_name, seconds, failure)
            if not failure:
                self._count_tokens(operation, text_call, ended_s)

    def _count_tokens(self, operation: str, call: TextCall, ended_s: float) -> None:
        """Count the tokens of a call that has succeeded."""
        model, metrics = call.model_name, self.metrics
        if call.tokens:
            metrics.add_tokens(operation, model, "input", call.tokens)
        if call.output_tokens:
            metrics.add_tokens(operation, model, "output", call.output_tokens)
            first_s = call.begun_s - call.called_s
            rest_s = ended_s - call.begun_s
            metrics.add_output(operation, model, first_s, rest_s, call.output_tokens)


async def permitted_names(call: HttpCall, models: TextModels) -> list[str]:
    """Return the names of the text models that a call's client may use for inference."""
    names = await models.names()
    principal = principal_of(call.sender)
    if principal is None:
        return names
    grant = principal.grant
    return [name for name in names if grant.permits_model("inference", name)]


def split_jobs(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return where jobs of items begin and end, and their sizes. sizes: in characters."""
    jobs = []
    begin = total = 0
    for index, size in enumerate(sizes):
        if index - begin >= _JOB_TEXTS or (index > begin and total >= _JOB_CHARACTERS):
            jobs.append((begin, index, total))
            begin, total = index, 0
        total += size
    jobs.append((begin, len(sizes), total))
    return jobs


def _size_of(text: Any) -> int:
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
