"""Routes of SageMaker, and the statuses on which its platform acts."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from nereid_gateway.core.routes import name_of
from nereid_gateway.server.call import TEXT


class Action(Enum):
    """Actions that the target of a request may ask for."""

    PING = "ping"
    INVOCATIONS = "invocations"
    # The next routes exist only in multi-model mode.
    MODELS = "models"
    MODEL = "model"
    INVOKE = "invoke"
    NONE = "none"


class SageMakerRoute(NamedTuple):
    """Action of a target, and the platform's name of the model if the target has one."""

    action: Action
    model: str = ""


_PLAIN: Final = {
    b"/ping": SageMakerRoute(Action.PING),
    b"/invocations": SageMakerRoute(Action.INVOCATIONS),
    b"/models": SageMakerRoute(Action.MODELS),
    b"/models/": SageMakerRoute(Action.MODELS),
}
_MODEL: Final = re.compile(rb"/models/([^/]+)(/invoke)?")
_NOWHERE: Final = SageMakerRoute(Action.NONE)

# Frameworks report a lack of memory by these texts. The platform then unloads other models.
_OUT_OF_MEMORY: Final = re.compile(
    rb"out of memory|OUT_OF_MEMORY|OutOfMemory|MemoryError|\bOOM\b"
    rb"|(?:Dst|Src) tensor is not initialized"
    rb"|(?:CUDNN|CUBLAS)_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)"
    rb"|failed to allocate memory|bad_alloc|No space left on device",
    re.IGNORECASE,
)
INSUFFICIENT_STORAGE: Final = 507
_INTERNAL: Final = 500
_BAD_REQUEST: Final = 400


def resolve(target: bytes) -> SageMakerRoute:
    """Return the route of a request's target. The query is ignored."""
    path = target.partition(b"?")[0]
    plain = _PLAIN.get(path)
    if plain is not None:
        return plain
    match = _MODEL.fullmatch(path)
    if match is None:
        return _NOWHERE
    try:
        name = name_of(match[1].decode("latin-1"))
    except ValueError:
        return _NOWHERE
    return SageMakerRoute(Action.INVOKE if match[2] else Action.MODEL, name)


def map_status(status: int, content_type: bytes, text: bytes) -> int:
    """Return the status of an error: 507 for a lack of memory, 400 for a failed model.

    The error of a failed model has status 500 and is plain text. No other error has both.
    """
    if _OUT_OF_MEMORY.search(text):
        return INSUFFICIENT_STORAGE
    return _BAD_REQUEST if status == _INTERNAL and content_type == TEXT else status
