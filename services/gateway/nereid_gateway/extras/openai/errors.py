"""Errors of calls, and the JSON bodies that each API gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from nereid.core.errors import InvalidArgument, NereidError, NotFound, Unknown, http_status
from nereid.text.decisions import QuestionRefused
from nereid_gateway.core.retry_hints import retry_line
from nereid_gateway.core.routes import path_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.server.call import HttpCall

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
# Code of the error for a text with more tokens than the model reads.
TOO_LONG: Final = "context_length_exceeded"
# Code of the error for a list without items.
EMPTY: Final = "empty_array"


class _Kind(NamedTuple):
    type: str
    code: str | None


# OpenAI's types and codes of errors, by status.
_KINDS: Final = {
    400: _Kind(_INVALID, None),
    401: _Kind(_INVALID, "invalid_api_key"),
    403: _Kind(_INVALID, "insufficient_permissions"),
    404: _Kind(_INVALID, None),
    405: _Kind(_INVALID, "method_not_supported"),
    413: _Kind(_INVALID, "content_too_large"),
    429: _Kind("requests", "rate_limit_exceeded"),
    503: _Kind(_SERVER, "service_unavailable"),
    504: _Kind(_SERVER, "timeout"),
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TEI_TYPES: Final = {429: "Overloaded", 503: "Overloaded"}
_SYSTEM_ONE_TYPES: Final = {
    401: "unauthorized",
    403: "unauthorized",
    404: "model_not_found",
    413: "request_too_large",
    422: "request_refused",
    503: "model_not_ready",
}
_TEI_PATHS: Final = (
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/predict",
    "/similarity",
    "/decode",
    "/info",
)
# Paths without a prefix of their own.
_OTHER_PATHS: Final = (
    "/rerank",
    "/v2/rerank",
    "/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
)
_PREFIXES: Final = ("/v1/", "/openai/")
_ANTHROPIC_ENDS: Final = ("/v1/messages", "/v1/messages/count_tokens")


class InvalidParameter(InvalidArgument):
    """A parameter of a body is wrong. Clients get its name and a code of OpenAI's."""

    def __init__(self, parameter: str, message: str, api_code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.api_code = api_code

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle the error: decoder processes return it."""
        return InvalidParameter, (self.parameter, self.message, self.api_code)


class ModelNotFound(NotFound):
    """There is no such model."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The model '{name[:200]}' does not exist, or it is not loaded.")


class NoModelFits(NotFound):
    """A call names no model, and no model can do what it asks for."""

    def __init__(self, tasks: str) -> None:
        super().__init__(f"No loaded model can do this: it needs one of the task {tasks}.")


def openai_error(
    status: int, message: str, parameter: str | None = None, code: str | None = None
) -> bytes:
    """Return the body of an error as OpenAI has it."""
    return orjson.dumps({"error": _members(status, message, parameter, code)})


def _members(
    status: int, message: str, parameter: str | None, code: str | None
) -> dict[str, str | None]:
    kind = _KINDS.get(status, _Kind(_SERVER if status >= 500 else _INVALID, None))
    return {
        "message": _encodable(message),
        "type": kind.type,
        "param": parameter,
        "code": code or kind.code,
    }


def tei_error(status: int, message: str) -> bytes:
    """Return the body of an error as Text Embeddings Inference has it."""
    kind = _TEI_TYPES.get(status, "Backend" if status >= 500 else "Validation")
    return orjson.dumps({"error": _encodable(message), "error_type": kind})


def tei_unhealthy(_status: int, message: str) -> bytes:
    """Return the body of the error of a server that is not ready, as TEI has it."""
    return orjson.dumps({"error": message, "error_type": "Unhealthy"})


def _tei_empty_error(_status: int, message: str) -> bytes:
    return orjson.dumps({"error": _encodable(message), "error_type": "Empty"})


def cohere_error(_status: int, message: str) -> bytes:
    """Return the body of an error as Cohere's second version has it."""
    return orjson.dumps({"message": _encodable(message)})


def system_one_error(status: int, message: str) -> bytes:
    """Return the body of an error as servers of System One models have it."""
    kind = _SYSTEM_ONE_TYPES.get(status, "internal_error" if status >= 500 else "invalid_request")
    return orjson.dumps({"error": {"type": kind, "message": _encodable(message)}})


def anthropic_error(status: int, message: str) -> bytes:
    """Return the body of an error as Anthropic has it."""
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else _INVALID)
    error = {"type": kind, "message": _encodable(message)}
    return orjson.dumps({"type": "error", "error": error})


def anthropic_body_of(error: NereidError) -> bytes:
    """Return the body of an error as Anthropic has it, for the middle of a stream."""
    return anthropic_error(_status_of(error), error.message)


def set_error_form(call: HttpCall) -> None:
    """Give errors of a call the form of the API that its target belongs to, if it is one here."""
    path = path_of(call.target)
    if path in _TEI_PATHS:
        call.encode_error = tei_error
    elif path.endswith(("/v2/rerank", "/v2/embed")):
        call.encode_error = cohere_error
    elif path.endswith("/v1/systemone"):
        call.encode_error = system_one_error
    elif path.endswith(_ANTHROPIC_ENDS):
        call.encode_error = anthropic_error
    elif path in _OTHER_PATHS or path.startswith(_PREFIXES):
        call.encode_error = openai_error


def fail_call(call: HttpCall, error: NereidError, extra: bytes = b"") -> None:
    """Respond with an error. extra: further lines of the response's head."""
    status = _status_of(error)
    if call.encode_error is system_one_error and _is_refusal(error):
        status = 422
    if call.encode_error is openai_error:
        call.encode_error = _detailed(error)
    if call.encode_error is tei_error and isinstance(error, InvalidParameter):
        if error.api_code == EMPTY:
            call.encode_error = _tei_empty_error
        else:
            status = 422
    call.fail(status, error.message, extra=retry_line(error) + extra)


def _is_refusal(error: NereidError) -> bool:
    """Return whether a request is valid, but not for this model."""
    if isinstance(error, InvalidParameter):
        return error.api_code == TOO_LONG
    return isinstance(error, QuestionRefused)


def _status_of(error: NereidError) -> int:
    # On Triton, the status of a model's failure is 400, after which no client here tries again.
    return 500 if error.code == Unknown.code else http_status(error.code)


def error_members(error: NereidError) -> dict[str, str | None]:
    """Return an error as OpenAI has it within a body, for the middle of a stream."""
    return _members(_status_of(error), error.message, *_details(error))


def _details(error: NereidError) -> tuple[str | None, str | None]:
    """Return the parameter that an error names, and its code."""
    if isinstance(error, InvalidParameter):
        return error.parameter, error.api_code
    if isinstance(error, ModelNotFound | NoModelFits):
        return "model", "model_not_found"
    return None, None


def _detailed(error: NereidError) -> Callable[[int, str], bytes]:
    parameter, code = _details(error)
    return lambda status, message: openai_error(status, message, parameter, code)


def _encodable(message: str) -> str:
    return message.encode("utf-8", "replace").decode()
