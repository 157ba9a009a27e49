"""Routes of Amazon SageMaker: /ping and /invocations, and /models in multi-model mode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.errors import AlreadyExists, NotFound
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.routes import model_target, repository_target
from nereid_gateway.extras.managed.archives import is_plain, model_name
from nereid_gateway.extras.managed.multi_model import parse_load
from nereid_gateway.extras.managed.port import refuse_route
from nereid_gateway.extras.managed.sagemaker_routes import Action, map_status, resolve
from nereid_gateway.extras.managed.server import content_types
from nereid_gateway.server.call import JSON

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nereid_gateway.extras.managed.archives import Archive
    from nereid_gateway.extras.managed.default_model import DefaultModel
    from nereid_gateway.extras.managed.multi_model import MultiModel
    from nereid_gateway.extras.managed.server.calls import ManagedCall

# Header with the client's name for the archive. The route has only a digest of this name.
_TARGET_MODEL: Final = b"x-amzn-sagemaker-target-model"
_INDEX: Final = b"/v2/repository/index"
# No archive can have this name.
_UNKNOWN: Final = "(unknown)"
_MODE_IS_OFF: Final = "multi-model mode is off (--sagemaker-multi-model, SAGEMAKER_MULTI_MODEL)"


class SageMaker:
    """Translates the calls of the SageMaker port."""

    def __init__(
        self,
        default_model: DefaultModel,
        multi_model: MultiModel | None,
        *,
        inference_type: str = "infer",
        ping_mode: str = "ready",
    ) -> None:
        """multi_model: None if off. inference_type, ping_mode: last segments of KServe routes."""
        self._default = default_model
        self._multi_model = multi_model
        self._inference_type = inference_type
        self._health = b"/v2/health/%b" % ping_mode.encode()

    def translate_head(self, call: ManagedCall) -> bool:
        """Translate an inference request by its head, as `Platform` specifies."""
        call.binary_type = call.response_type = content_types.SAGEMAKER
        call.map_status = map_status
        action, key = resolve(call.target)
        if action is Action.INVOCATIONS and self._default.name:
            self._invoke(call, self._default.name)
            return True
        if action is Action.INVOKE and self._multi_model is not None:
            model = self._multi_model.known_model(key)
            if model is not None:
                call.translate(model_target(model, "infer"))
                return True
        return False

    def translate(self, call: ManagedCall) -> Coroutine[Any, Any, None] | None:
        """Translate any other call, or respond to it, as `Platform` specifies."""
        action, key = resolve(call.target)
        if action is Action.PING:
            call.translate(self._health)
        elif action is Action.INVOCATIONS:
            return self._invoke_default(call)
        elif action is Action.NONE:
            refuse_route(call)
        elif self._multi_model is None:
            call.fail(400, _MODE_IS_OFF)
        else:
            self._translate_archive(call, action, key, self._multi_model)
        return None

    def _translate_archive(
        self, call: ManagedCall, action: Action, key: str, models: MultiModel
    ) -> None:
        if key and not is_plain(key):
            # Other characters in the key could change the target that the guards read.
            key = _UNKNOWN
        if action is Action.INVOKE:
            self._invoke_archive(call, key, models)
        else:
            self._control(call, key, models)

    def _invoke(self, call: ManagedCall, model: str) -> None:
        call.translate(model_target(model, self._inference_type))

    async def _invoke_default(self, call: ManagedCall) -> None:
        self._invoke(call, await self._default.find())

    def _invoke_archive(self, call: ManagedCall, key: str, models: MultiModel) -> None:
        try:
            call.translate(model_target(models.find_model(key), "infer"))
        except NotFound as error:
            # The error is sent only if the guards permit the request.
            message = error.message
            call.translate(model_target(key, "infer"), lambda call: call.fail(404, message))

    def _control(self, call: ManagedCall, key: str, models: MultiModel) -> None:
        """Present the call to the guards as a call of the model repository API."""
        if call.method == b"GET":
            listing = partial(_describe, models, key) if key else partial(_list, models)
            call.translate(_INDEX, listing)
        elif call.method == b"POST" and not key:
            target_model = call.headers.get(_TARGET_MODEL, b"").decode("utf-8", "replace")
            key, url = parse_load(call.body)
            name = model_name(key, target_model)
            load = partial(_load, models, key, url, target_model)
            call.translate(repository_target(name, "load"), load)
        elif call.method == b"DELETE" and key:
            name = _model_of(models, key)
            unload = partial(_unload, models, key)
            call.translate(repository_target(name, "unload"), unload)
        else:
            call.refuse_method(JSON, b"GET", b"DELETE" if key else b"POST")


def _model_of(models: MultiModel, key: str) -> str:
    """Return the model that an unload needs rights for, or the key of an unknown archive."""
    try:
        return models.find_model(key)
    except NotFound:
        return key


def _document(archive: Archive) -> dict[str, str]:
    return {"modelName": archive.key, "modelUrl": archive.url}


async def _list(models: MultiModel, call: ManagedCall) -> None:
    archives = await models.list()
    call.respond(200, (orjson.dumps({"models": [*map(_document, archives)]}),))


async def _describe(models: MultiModel, key: str, call: ManagedCall) -> None:
    archive = await models.describe(key)
    call.respond(200, (orjson.dumps(_document(archive)),))


async def _load(
    models: MultiModel, key: str, url: str, target_model: str, call: ManagedCall
) -> None:
    call.free_body()
    try:
        principal = principal_of(call.sender)
        limit = bytes if principal is None else principal.with_requester
        await models.load(key, url, target_model, limit)
    except AlreadyExists as error:
        call.fail(409, error.message)
    else:
        call.respond(200, ())


async def _unload(models: MultiModel, key: str, call: ManagedCall) -> None:
    await models.unload(key)
    call.respond(200, ())
