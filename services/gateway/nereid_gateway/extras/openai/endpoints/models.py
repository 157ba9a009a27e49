"""The models: OpenAI's list and its entries, and TEI's info."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.errors import NereidError
from nereid.model_config.batching_fields import MAX_BATCH_TOKENS
from nereid.pb import kserve_pb2
from nereid.text.mapping import CLASSIFY, EMBED, EMBED_SPARSE, RANK
from nereid.text.questions import SYSTEM_ONE_TYPES
from nereid.version import version
from nereid_gateway.extras.openai.bodies import MAX_TEXTS
from nereid_gateway.extras.openai.calls import permitted_names
from nereid_gateway.extras.openai.errors import tei_unhealthy
from nereid_gateway.extras.openai.texts.rows import MAX_IN_FLIGHT
from nereid_gateway.server.call import TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

# Models that are asked for at a time.
_AT_ONCE: Final = 16
_TEI_TYPES: Final = {
    EMBED: "embedding",
    EMBED_SPARSE: "embedding",
    RANK: "reranker",
    CLASSIFY: "classifier",
}
_ALL: Final = tuple(_TEI_TYPES)


class OpenAiModels:
    """Handlers of the routes that describe models."""

    def __init__(self, services: TextServices, data_plane: DataPlane) -> None:
        self._serve = services.serve
        self._models = services.models
        self._tokenizing_threads = services.pool.threads
        self._data_plane = data_plane
        self._control = data_plane.control

    async def list_models(self, call: HttpCall, _route: Route) -> None:
        """Respond with the text models that the client may use."""
        await self._serve(call, "list_models", self._list)

    async def retrieve(self, call: HttpCall, route: Route) -> None:
        """Respond with one model, as OpenAI does and as KServe's first version does."""

        async def describe(text_call: TextCall) -> Sequence[bytes]:
            return await self._describe(text_call, route.model)

        await self._serve(call, "retrieve_model", describe)

    async def health(self, call: HttpCall, _route: Route) -> None:
        """Respond with 200 if requests are accepted, as vLLM and TEI do."""
        if not self._data_plane.draining and await self._data_plane.ready():
            call.respond(200, (), TEXT)
        else:
            call.encode_error = tei_unhealthy
            call.fail(503, "The mesh is not ready.")

    async def info(self, call: HttpCall, _route: Route) -> None:
        """Respond with the only text model, as TEI does."""
        await self._serve(call, "info", self._info)

    async def _list(self, call: TextCall) -> Sequence[bytes]:
        names = await permitted_names(call.call, self._models)
        loaded = await self._models.loaded_names()
        slots = asyncio.Semaphore(_AT_ONCE)

        async def describe(name: str) -> dict[str, Any] | None:
            if name not in loaded:
                return model_document(name, None)
            async with slots:
                try:
                    model = await self._models.find(name)
                except NereidError:
                    # It was unloaded meanwhile, or its text.json is wrong.
                    return None
            return None if model is None else model_document(name, model)

        documents = list(filter(None, await asyncio.gather(*map(describe, names))))
        return (orjson.dumps({"object": "list", "data": documents}),)

    async def _describe(self, call: TextCall, name: str) -> Sequence[bytes]:
        model = await self._models.find(name)
        ready = await self._control.call(
            "ModelReady",
            kserve_pb2.ModelReadyRequest(name=name),
            kserve_pb2.ModelReadyResponse,
        )
        call.model_name = name
        return (orjson.dumps(model_document(name, model) | {"name": name, "ready": ready.ready}),)

    async def _info(self, call: TextCall) -> Sequence[bytes]:
        async def describe(model: TextModel) -> dict[str, Any]:
            mapping = model.mapping
            kinds: dict[str, Any] = {}
            for task, kind in _TEI_TYPES.items():
                if task in mapping.tasks:
                    labels = {str(index): label for index, label in enumerate(mapping.labels)}
                    kinds[kind] = (
                        {"pooling": mapping.pooling or "none"}
                        if kind == "embedding"
                        else {
                            "id2label": labels,
                            "label2id": {v: int(k) for k, v in labels.items()},
                        }
                    )
            return {
                "model_id": model.name,
                "model_sha": model.digest.hex(),
                "model_dtype": "float32",
                "model_type": kinds,
                "max_input_length": mapping.max_tokens,
                "served_model_name": model.name,
                "max_concurrent_requests": MAX_IN_FLIGHT,
                "max_batch_tokens": _batch_tokens(model),
                "max_batch_requests": max(model.config.max_batch_size, 1),
                "max_client_batch_size": MAX_TEXTS,
                "auto_truncate": False,
                "tokenization_workers": self._tokenizing_threads,
                "version": version(),
                "sha": None,
                "docker_label": None,
            }

        return (orjson.dumps(await call.with_model(None, _ALL, describe)),)


def _batch_tokens(model: TextModel) -> int:
    """Return the number of tokens that a batch may have; 0 if there is no limit."""
    parameters = model.config.parameters
    if MAX_BATCH_TOKENS in parameters:
        return int(parameters[MAX_BATCH_TOKENS].string_value)
    return max(model.config.max_batch_size, 1) * model.mapping.max_tokens


def model_document(name: str, model: TextModel | None) -> dict[str, Any]:
    """Return a model's entry of OpenAI's list. model: None if nothing is known of its texts."""
    document = {
        "id": name,
        "object": "model",
        "created": 0 if model is None else model.loaded_s,
        "owned_by": "nereid",
        "max_model_len": None if model is None else model.mapping.max_tokens or None,
    }
    decisions = None if model is None else model.mapping.decisions
    if decisions is not None and decisions.package is not None:
        # Servers of System One models say this of a package.
        document |= decisions.package._asdict() | {
            "question_types": [*SYSTEM_ONE_TYPES],
            "conformance": None,
            "calibration": None,
        }
    return document
