"""The mesh's text models as this gateway knows them: mapping, tokenizer, version."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import numpy as np

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import InvalidArgument, NotFound
from nereid.core.files.paced_reads import PacedReads
from nereid.core.sequence_owners import SEQUENCE_ID
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.text import read_mapping
from nereid_gateway.core import request_head
from nereid_gateway.core.request_head import HeadInput
from nereid_gateway.extras.openai.errors import InvalidParameter, ModelNotFound
from nereid_gateway.extras.openai.texts.rows import Row
from nereid_gateway.extras.openai.texts.tokenizer import TextTokenizer, TokenLimit, Tokens
from nereid_gateway.extras.openai.texts.vector_layers import VectorLayers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import Parameter, Payload
    from nereid.pb.model_config_pb2 import ModelOutput
    from nereid.text import TextInput, TextMapping
    from nereid.text.generation import Generation
    from nereid_gateway.extras.openai.work_pool import WorkPool
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.server.call import HttpCall

# Models, and bytes of their files, that a gateway keeps.
_MAX_MODELS: Final = 256
_MAX_BYTES: Final = 512 << 20
_MAX_HEADS: Final = 4096
_FLOATS: Final = frozenset({"BF16", "FP16", "FP32", "FP64"})
_MAX_READS: Final = 1024
# Characters of a name: a folder's, with a namespace and a version. Longer ones would fill the
# memory as keys.
_MAX_NAME: Final = 1024
_NEVER: Final = -1
_VERSIONED: Final = re.compile(r"(?P<name>[^/]+)/(?P<version>[0-9]+)")


class TokenStep(NamedTuple):
    """Place of tokens in a sequence, of which the model keeps the tokens before."""

    sequence_id: str
    # Number of the tokens before.
    before: int = 0
    ends: bool = False

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of its request."""
        return {
            SEQUENCE_ID: self.sequence_id,
            "sequence_start": not self.before,
            "sequence_end": self.ends,
        }


class TextModel:
    """A version of a text model: how its texts become rows."""

    def __init__(self, name: str, response: pb.ModelTextResponse, mapping: TextMapping) -> None:
        self.name = name
        self.version = response.version
        self.digest = response.digest
        self.loaded_s = response.loaded_s
        self.files = dict(response.files)
        self.size_bytes = sum(map(len, self.files.values()))
        self.config = response.config
        self.mapping = mapping
        # Number of changes of the mesh's models before the schedulers were last asked about it.
        self.checked = _NEVER
        self._tokenizer: TextTokenizer | None = None
        self._heads = BoundedCache[tuple[int, ...], bytes](_MAX_HEADS)
        self._ones = _Filler()
        self._zeros = _Filler()

    @cached_property
    def layers(self) -> VectorLayers:
        """The layers behind the pooling. Raises InvalidArgument if their weights are damaged."""
        return VectorLayers(self.mapping.layers, self.files)

    @property
    def takes_text(self) -> bool:
        """True if the model has its own tokenizer, and takes texts."""
        return self.mapping.ids is None

    @property
    def has_tokenizer(self) -> bool:
        """True if the model's files have a tokenizer."""
        return self.mapping.tokenizer in self.files

    @property
    def generation(self) -> Generation:
        """Section of a model that has the task of generation."""
        generation = self.mapping.generation
        assert generation is not None, "the model does not generate"
        return generation

    @property
    def gives_logits(self) -> bool:
        """True if a model that generates gives logits of tokens, not tokens or text."""
        return NAME_OF_CONFIG_NUMBER.get(self._output().data_type, "") in _FLOATS

    @property
    def output_size(self) -> int:
        """Last dimension of the output, -1 if it is not known."""
        dims = self._output().dims
        return dims[-1] if dims else VARIABLE

    def _output(self) -> ModelOutput:
        return next(each for each in self.config.output if each.name == self.mapping.output)

    def eos_ids(self) -> frozenset[int]:
        """Return the tokens that end a text. The tokenizer has to be read if there is one."""
        generation = self.generation
        token = self.mapping.special_tokens.get("eos_token")
        if generation.eos_ids or token is None or not self.has_tokenizer:
            return generation.eos_ids
        token_id = self.tokenizer().id_of(token)
        return frozenset() if token_id is None else frozenset({token_id})

    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer, which is read first if need be, in a thread."""
        if self._tokenizer is None:
            content = self.files.get(self.mapping.tokenizer)
            if content is None:
                raise InvalidArgument(
                    f"model '{self.name}' has no file '{self.mapping.tokenizer}', which this API"
                    " needs"
                )
            self._tokenizer = TextTokenizer(content)
        return self._tokenizer

    def expire(self) -> None:
        """Have the schedulers asked about the model before it is used again."""
        self.checked = _NEVER

    def is_read(self) -> bool:
        """Return whether all has been read that rows need."""
        return self._tokenizer is not None or (self.takes_text and not self.has_tokenizer)

    def token_row(
        self,
        tokens: Tokens,
        further: Sequence[tuple[TextInput, Sequence[int]]] = (),
        step: TokenStep | None = None,
    ) -> Row:
        """Return the row of a text's tokens. further: inputs with their values in this row.

        step: the tokens' place in their sequence if the model keeps tokens and others follow.
        """
        mapping = self.mapping
        assert mapping.ids is not None, "the model takes texts"
        ids = np.array(tokens.ids, NUMPY_TYPE[mapping.ids.datatype])
        count = len(ids)
        size = mapping.fixed_tokens or count
        if size < count:
            raise InvalidArgument(f"model '{self.name}' takes {size} tokens, not {count}")
        if size > count:
            ids = np.pad(ids, (0, size - count), constant_values=mapping.pad_id)
        before, parameters = 0, None
        if mapping.keeps_tokens:
            step = step or TokenStep(uuid4().hex, ends=True)
            before, parameters = step.before, step.parameters()
        payloads: list[Payload] = [ids.tobytes()]
        if mapping.mask is not None:
            payloads.append(self._mask(mapping.mask.datatype, before, count, size))
        if mapping.types is not None:
            payloads.append(self._types(mapping.types.datatype, tokens, size))
        if mapping.positions is not None:
            positions = self._positions(mapping.positions.datatype, before, count, size)
            payloads.append(positions)
        if mapping.logits_to_keep is not None:
            payloads.append(np.ones(1, NUMPY_TYPE[mapping.logits_to_keep.datatype]).tobytes())
        for tensor, values in further:
            payloads.append(np.array(values, NUMPY_TYPE[tensor.datatype]).tobytes())
        head = self._head(size, further, before)
        return Row(head, payloads, count, count, self.digest, parameters)

    def _mask(self, datatype: str, before: int, count: int, size: int) -> bytes:
        if not before:
            return self._ones.content(datatype, count, size)
        # Each length comes once in a text, so the memory is not kept.
        return np.ones(before + size, NUMPY_TYPE[datatype]).tobytes()

    def _types(self, datatype: str, tokens: Tokens, size: int) -> bytes:
        if tokens.types is None:
            return self._zeros.content(datatype, 0, size)
        types = np.zeros(size, NUMPY_TYPE[datatype])
        types[: len(tokens.types)] = tokens.types
        return types.tobytes()

    def _positions(self, datatype: str, before: int, count: int, size: int) -> bytes:
        positions = np.full(size, self.mapping.padded_position, NUMPY_TYPE[datatype])
        first = self.mapping.first_position + before
        positions[:count] = np.arange(first, first + count)
        return positions.tobytes()

    def text_row(self, text: str, count: int = 0) -> Row:
        """Return the row of a text for a model that takes texts. count: its tokens, if known."""
        return self.content_row(text.encode(), count)

    def content_row(self, content: bytes, count: int = 0) -> Row:
        """Return the row of bytes for a model that takes texts or files."""
        element = len(content).to_bytes(4, "little") + content
        return Row(self._head(1), [element], count, len(content), self.digest)

    def _head(
        self,
        size: int,
        further: Sequence[tuple[TextInput, Sequence[int]]] = (),
        before: int = 0,
    ) -> bytes:
        key = size, before, *(len(values) for _, values in further)
        known = self._heads.get(key)
        if known is not None:
            return known
        tensors = self.tensors(size, before)
        tensors += [_tensor(tensor, len(values)) for tensor, values in further]
        head = request_head.build(self.name, self.version, tensors, [self.mapping.output]).head
        return self._heads.remember(key, head)

    def tensors(self, size: int, before: int = 0) -> list[HeadInput]:
        """Return the inputs of a row in the order of its payloads.

        size: number of its tokens. before: number of those that the model keeps of its sequence.
        """
        mapping = self.mapping
        if mapping.text is not None:
            return [_tensor(mapping.text, 1)]
        inputs = (mapping.ids, size), (mapping.mask, before + size)
        others = (mapping.types, size), (mapping.positions, size), (mapping.logits_to_keep, 1)
        return [_tensor(each, count) for each, count in (*inputs, *others) if each is not None]


class _Filler:
    """Tensors with ones, followed by zeros, by type and size."""

    def __init__(self) -> None:
        self._known = BoundedCache[tuple[str, int, int], bytes](_MAX_HEADS)

    def content(self, datatype: str, ones: int, size: int) -> bytes:
        key = datatype, ones, size
        known = self._known.get(key)
        if known is not None:
            return known
        array = np.zeros(size, NUMPY_TYPE[datatype])
        array[:ones] = 1
        return self._known.remember(key, array.tobytes())


def _tensor(tensor: TextInput, size: int) -> HeadInput:
    last = 1 if tensor.datatype == BYTES else size
    return HeadInput(tensor.name, tensor.datatype, [1] * (tensor.rank - 1) + [last])


def split_name(name: str) -> tuple[str, str]:
    """Return the model and the version of NAME/VERSION; a name without one has an empty version.

    Rights must be checked for just the name that is asked for: a namespace has slashes as well.
    """
    versioned = _VERSIONED.fullmatch(name)
    return (versioned["name"], versioned["version"]) if versioned else (name, "")


class TextModels:
    """Text models by name. The schedulers are asked again after each change of the mesh's models.

    A call may begin before the notice of a change. Its rows then have the digest of the files that
    they were made with, by which the scheduler refuses them.
    """

    def __init__(self, control: Control, pool: WorkPool) -> None:
        self._control = control
        self._pool = pool
        # The least recently used comes first.
        self._known: OrderedDict[str, TextModel] = OrderedDict()
        self._size_bytes = 0
        # Number of notices that versions of models have changed.
        self._changes = 0
        self._names: list[str] = []
        self._names_checked = _NEVER
        # Callers that come while the schedulers are asked share the next question.
        self._reads = BoundedCache[str, PacedReads[str, TextModel | None]](_MAX_READS)

    def expire_all(self) -> None:
        """Have the schedulers asked about each model before it is used again."""
        self._changes += 1

    async def names(self) -> list[str]:
        """Return the names of the ready models that have files of texts."""
        if self._names_checked != self._changes:
            asked = self._changes
            response = await self._control.call(
                "ModelText", pb.ModelTextRequest(), pb.ModelTextResponse
            )
            self._names, self._names_checked = sorted(response.names), asked
        return self._names

    async def loaded_names(self) -> set[str]:
        """Return the names of models in memory. Questions about others would load them."""
        response = await self._control.call(
            "RepositoryIndex",
            kserve_pb2.RepositoryIndexRequest(ready=True),
            kserve_pb2.RepositoryIndexResponse,
        )
        return {model.name for model in response.models if not model.reason}

    async def find(self, name: str) -> TextModel | None:
        """Return a model as it is served now, or None if it has no mapping of texts.

        name: may end in a slash and a version. Raises ModelNotFound.
        """
        if len(name) > _MAX_NAME:
            raise ModelNotFound(name)
        known = self._known.get(name)
        if known is not None and known.checked == self._changes:
            self._known.move_to_end(name)
            return known
        reads = self._reads.get(name)
        if reads is None:
            reads = self._reads.remember(name, PacedReads(self._read, share=1.0))
        return await reads.get(name)

    async def get(self, name: str) -> TextModel:
        """Return a text model as it is served now. Raises ModelNotFound."""
        model = await self.find(name)
        if model is None:
            raise InvalidParameter(
                "model",
                f"The model '{name[:200]}' has no tokenizer.json or text.json that would say how it"
                " takes texts.",
                "model_not_supported",
            )
        return model

    async def load_tokenizer(self, call: HttpCall, model: TextModel) -> TextTokenizer:
        """Return a model's tokenizer. A thread reads it when it is needed for the first time."""
        if model.is_read():
            return model.tokenizer()
        return await self._pool.run(call, model.size_bytes, model.tokenizer)

    async def _read(self, name: str) -> TextModel | None:
        model_name, version = split_name(name)
        if not model_name:
            # A scheduler would take this for a request for all names.
            raise ModelNotFound(name)
        known = self._known.get(name)
        asked = self._changes
        request = pb.ModelTextRequest(
            name=model_name,
            version=version,
            known_digest=b"" if known is None else known.digest,
        )
        try:
            response = await self._control.call("ModelText", request, pb.ModelTextResponse)
        except NotFound as error:
            self._forget(name)
            raise ModelNotFound(name) from error
        if known is not None and response.digest == known.digest:
            if known.version == response.version:
                known.checked, known.loaded_s = asked, response.loaded_s
                if name in self._known:
                    self._known.move_to_end(name)
                return known
            # Another version has the same files.
            response.config.CopyFrom(known.config)
            response.files.update(known.files)
        self._forget(name)
        mapping = read_mapping(response.config, response.files)
        if mapping is None:
            return None
        model = TextModel(request.name, response, mapping)
        model.checked = asked
        self._remember(name, model)
        return model

    def _remember(self, name: str, model: TextModel) -> None:
        self._known[name] = model
        self._size_bytes += model.size_bytes
        while len(self._known) > 1 and (
            len(self._known) > _MAX_MODELS or self._size_bytes > _MAX_BYTES
        ):
            _, forgotten = self._known.popitem(last=False)
            self._size_bytes -= forgotten.size_bytes

    def _forget(self, name: str) -> None:
        forgotten = self._known.pop(name, None)
        if forgotten is not None:
            self._size_bytes -= forgotten.size_bytes


def rows_of(
    model: TextModel,
    texts: Sequence[Any],
    limit: TokenLimit,
    *,
    special: bool = True,
    first: int = 0,
) -> list[Row]:
    """Return the rows of texts, pairs of texts, or lists of token ids. This blocks.

    first: the number of the first text in its call, for errors.
    """
    if model.takes_text:
        return [_text_row(model, text, first + index) for index, text in enumerate(texts)]
    tokenizer = model.tokenizer()
    if texts and isinstance(texts[0], list):
        tokens = [tokenizer.check_ids(ids, limit, first + index) for index, ids in enumerate(texts)]
    else:
        tokens = tokenizer.tokenize(texts, limit, special=special, first=first)
    return [model.token_row(each) for each in tokens]


def _text_row(model: TextModel, text: Any, number: int) -> Row:
    if not isinstance(text, str):
        raise InvalidParameter(
            "input", f"item {number} has token ids or a pair, but model '{model.name}' takes texts."
        )
    count = 0
    if model.has_tokenizer:
        count = len(model.tokenizer().tokenize([text], TokenLimit(0))[0].ids)
    return model.text_row(text, count)
