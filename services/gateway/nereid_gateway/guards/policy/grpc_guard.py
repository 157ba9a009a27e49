"""Guard in front of the gRPC front. It refuses calls that the port's policy does not permit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.pb import kserve_pb2
from nereid.rpc import RpcError
from nereid_gateway.core.access.grant import UNGROUPED
from nereid_gateway.core.access.refusal import CallRefused
from nereid_gateway.core.grpc_methods import METHODS, METHODS_BY_PATH
from nereid_gateway.core.request_head import HeadReader
from nereid_gateway.core.retry_hints import exact_trailers
from nereid_gateway.guards.auth.limited_infer import STATUSES, LimitedInfer

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from nereid.rpc import AsyncUnaryHandler, Call, Handlers, StreamHandler, UnaryHandler
    from nereid_gateway.core.access.refusal import Refusal
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.fronts.grpc.front import GrpcFront
    from nereid_gateway.guards.auth.access import Caller
    from nereid_gateway.guards.policy.call_policy import CallPolicy
    from nereid_gateway.plane.data_plane import DataPlane

# Reflection describes the API, so it belongs to the group of metadata.
_REFLECTION: Final = "/grpc.reflection."

# Key: the path of a control method. Value: its message type, and the field that names a model.
_MODEL_FIELDS: Final[dict[str, tuple[Any, str]]] = {
    method.path: (getattr(kserve_pb2, f"{method.name}Request"), method.model_field)
    for method in METHODS
    if method.model_field
}


def api_of(path: str) -> str:
    """Return a method's group of APIs: UNGROUPED for a method that is not listed."""
    if path.startswith(_REFLECTION):
        return "metadata"
    method = METHODS_BY_PATH.get(path)
    return UNGROUPED if method is None else method.api


class GrpcGuard:
    """Wraps the handlers of the gRPC front. It works with either gRPC engine."""

    def __init__(self, front: GrpcFront, data_plane: DataPlane, policy: CallPolicy) -> None:
        self._front = front
        self._data_plane = data_plane
        self._policy = policy
        self._statuses: MutableMapping[int, int] = front.statuses
        self._models = HeadReader()

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers of the same methods, which pass only permitted calls on."""
        return replace(
            handlers,
            unary={path: self._unary(path, handler) for path, handler in handlers.unary.items()},
            async_unary={
                path: self._async_unary(path, handler)
                for path, handler in handlers.async_unary.items()
            },
            stream={path: self._stream(path, handler) for path, handler in handlers.stream.items()},
        )

    def _unary(self, path: str, handler: UnaryHandler) -> UnaryHandler:
        admit = self._admission(path)
        if admit is None:
            return handler

        def handle(call: Call, message: Any) -> None:
            try:
                caller = admit(call)
                if caller is not None:
                    caller.count_request()
            except CallRefused as refused:
                self._fail(call, refused.refusal)
                return
            if caller is None:
                handler(call, message)
            else:
                self._front.infer(call, message, self._limited(caller, checks_each_message=False))

        return handle

    def _async_unary(self, path: str, handler: AsyncUnaryHandler) -> AsyncUnaryHandler:
        admit = self._admission(path)
        if admit is None:
            return handler
        api = api_of(path)

        async def handle(call: Call, message: bytes) -> bytes:
            try:
                caller = admit(call)
                if caller is not None:
                    if path in _MODEL_FIELDS and caller.principal.grant.depends_on_model(api):
                        caller.check_rights(api, _model_of(path, message))
                    caller.count_request()
            except CallRefused as refused:
                status = STATUSES[refused.refusal.reason]
                self._statuses[status] += 1
                trailers = _trailers(refused.refusal)
                raise RpcError(status, refused.refusal.message, trailers) from refused
            if caller is None:
                return await handler(call, message)
            principal = caller.principal
            usage = principal.usage
            usage.in_flight += 1
            control = self._front.controls.get(path)
            try:
                if control is not None:
                    return await control(call, message, principal)
                return await handler(call, message)
            finally:
                usage.release()

        return handle

    def _stream(self, path: str, handler: StreamHandler) -> StreamHandler:
        admit = self._admission(path)
        if admit is None:
            return handler
        infers = api_of(path) == "inference"

        def handle(call: Call) -> None:
            try:
                caller = admit(call)
            except CallRefused as refused:
                self._fail(call, refused.refusal)
                return
            if infers and caller is not None:
                self._front.stream_infer(call, self._limited(caller, checks_each_message=True))
            else:
                handler(call)

        return handle

    def _admission(self, path: str) -> Callable[[Call], Caller | None] | None:
        """Return the check of a method's calls, or None if everybody may call the method."""
        policy = self._policy
        # Reflection is not in the table, so it requires no header.
        method = METHODS_BY_PATH.get(path)
        rule = None
        if method is not None:
            rule = policy.rule_of(method.api, changes=method.is_control, is_grpc=True)
        if rule is None and policy.access is None:
            return None
        api = api_of(path)
        return lambda call: policy.admit(api, rule, call.get, call.peer)

    def _limited(self, caller: Caller, *, checks_each_message: bool) -> Infer:
        infer = self._data_plane.infer
        return LimitedInfer(
            infer, caller, self._models, checks_each_message=checks_each_message
        ).infer

    def _fail(self, call: Call, refusal: Refusal) -> None:
        status = STATUSES[refusal.reason]
        self._statuses[status] += 1
        call.fail(status, refusal.message, _trailers(refusal))


def _model_of(path: str, message: bytes) -> str:
    kind, field = _MODEL_FIELDS[path]
    try:
        return str(getattr(kind.FromString(message), field))
    except DecodeError:
        # The handler rejects an invalid message with its own error.
        return ""


def _trailers(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    if not refusal.retry_after_s:
        return ()
    return exact_trailers(refusal.retry_after_s)
