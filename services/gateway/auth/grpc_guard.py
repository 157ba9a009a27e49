"""Authentication in front of the gRPC front's handlers, on either engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.pb import kserve_pb2
from nereid.rpc import RpcError
from nereid.services.gateway.auth.authenticator import Credentials
from nereid.services.gateway.auth.grant import UNGROUPED
from nereid.services.gateway.auth.limited_infer import STATUSES, LimitedInfer
from nereid.services.gateway.auth.refusal import CallRefused
from nereid.services.gateway.policy.api_groups import METHODS_BY_API
from nereid.services.gateway.request_head import HeadModels
from nereid.services.gateway.retry_hints import exact_trailers

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from nereid.rpc import AsyncUnaryHandler, Call, Handlers, StreamHandler, UnaryHandler
    from nereid.services.gateway.auth.access import AccessControl, Caller
    from nereid.services.gateway.auth.refusal import Refusal
    from nereid.services.gateway.data_plane import DataPlane
    from nereid.services.gateway.grpc.front import GrpcFront

_API_BY_METHOD: Final = {path: api for api, paths in METHODS_BY_API.items() for path in paths}
_SERVICE: Final = "/inference.GRPCInferenceService/"
# Reflection describes the API, as metadata does the server.
_REFLECTION: Final = "/grpc.reflection."

# Control messages that name a model, and the field that does.
_MODEL_FIELDS: Final[dict[str, tuple[Any, str]]] = {
    _SERVICE + method: (getattr(kserve_pb2, f"{method}Request"), name)
    for method, name in {
        "ModelReady": "name",
        "ModelMetadata": "name",
        "ModelConfig": "name",
        "ModelStatistics": "name",
        "RepositoryModelLoad": "model_name",
        "RepositoryModelUnload": "model_name",
        "TraceSetting": "model_name",
    }.items()
}


def api_of(path: str) -> str:
    """The group of a method; UNGROUPED, which only all rights include, for what nobody listed."""
    if path.startswith(_REFLECTION):
        return "metadata"
    return _API_BY_METHOD.get(path, UNGROUPED)


class AuthenticatedGrpc:
    """Wraps the handlers of the gRPC front."""

    def __init__(self, front: GrpcFront, data_plane: DataPlane, access: AccessControl) -> None:
        self._front = front
        self._data_plane = data_plane
        self._access = access
        self._statuses: MutableMapping[int, int] = front.statuses
        self._models = HeadModels()

    def handlers(self, handlers: Handlers) -> Handlers:
        """The same methods, for permitted calls only."""
        return replace(
            handlers,
            unary={path: self._unary(api_of(path)) for path in handlers.unary},
            async_unary={
                path: self._async_unary(path, handler)
                for path, handler in handlers.async_unary.items()
            },
            stream={path: self._stream(path, handler) for path, handler in handlers.stream.items()},
        )

    def _unary(self, api: str) -> UnaryHandler:
        """ModelInfer, the only method of this kind."""
        front, access = self._front, self._access

        def handle(call: Call, message: Any) -> None:
            try:
                caller = self._authorize(call, api)
                access.count_request(caller)
            except CallRefused as refused:
                self._fail(call, refused.refusal)
                return
            front.infer(call, message, self._limited(caller, of_stream=False).infer)

        return handle

    def _async_unary(self, path: str, handler: AsyncUnaryHandler) -> AsyncUnaryHandler:
        api = api_of(path)
        access = self._access

        async def handle(call: Call, message: bytes) -> bytes:
            try:
                caller = self._authorize(call, api)
                if path in _MODEL_FIELDS and caller.principal.grant.depends_on_model(api):
                    access.check_rights(caller, api, _model_of(path, message))
                access.count_request(caller)
            except CallRefused as refused:
                status = STATUSES[refused.refusal.reason]
                self._statuses[status] += 1
                trailers = _trailers(refused.refusal)
                raise RpcError(status, refused.refusal.message, trailers) from refused
            usage = caller.principal.usage
            usage.in_flight += 1
            try:
                return await handler(call, message)
            finally:
                usage.release()

        return handle

    def _stream(self, path: str, handler: StreamHandler) -> StreamHandler:
        api = api_of(path)
        infers = path == _SERVICE + "ModelStreamInfer"

        def handle(call: Call) -> None:
            try:
                caller = self._authorize(call, api)
            except CallRefused as refused:
                self._fail(call, refused.refusal)
                return
            if infers:
                limited = self._limited(caller, of_stream=True)
                self._front.stream_infer(call, limited.infer)
            else:
                handler(call)

        return handle

    def _authorize(self, call: Call, api: str) -> Caller:
        credentials = Credentials(call.get("x-api-key"), call.get("authorization"), call.peer)
        return self._access.authorize(credentials, api)

    def _limited(self, caller: Caller, *, of_stream: bool) -> LimitedInfer:
        return LimitedInfer(
            self._data_plane.infer, self._access, caller, self._models, of_stream=of_stream
        )

    def _fail(self, call: Call, refusal: Refusal) -> None:
        status = STATUSES[refusal.reason]
        self._statuses[status] += 1
        call.fail(status, refusal.message, _trailers(refusal))


def _model_of(path: str, message: bytes) -> str:
    kind, field = _MODEL_FIELDS[path]
    try:
        return str(getattr(kind.FromString(message), field))
    except DecodeError:
        # Nobody will understand it: the handler says so.
        return ""


def _trailers(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    if not refusal.retry_after_s:
        return ()
    return exact_trailers(refusal.retry_after_s)
