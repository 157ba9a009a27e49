"""Models that confined models may call for a client's request.

A request has the text of its client's rights. A request that a model makes for several clients has
the text of all of theirs: each of them must permit the model.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal
from nereid.core.permitted_models import ALL_NAMES, NamePatterns

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_TEXTS: Final = 1024
_MAX_TEXT_BYTES: Final = 4096
_known: BoundedCache[bytes, tuple[NamePatterns, ...]] = BoundedCache(_MAX_TEXTS, _MAX_TEXT_BYTES)


def write_callable_models(models: NamePatterns) -> bytes:
    """Return the text for one client."""
    return json.dumps([models.patterns]).encode()


NOTHING_CALLABLE: Final = write_callable_models(NamePatterns(()))
# Says that the clients are known, and none of them is limited; an empty text does not.
ALL_CALLABLE: Final = write_callable_models(ALL_NAMES)


def join_callable_models(texts: Iterable[bytes]) -> bytes:
    """Return the text for the clients of all these texts; empty if none of them is limited."""
    limited = {text for text in texts if text}
    if len(limited) <= 1:
        return limited.pop() if limited else b""
    every = {models for text in limited for models in _read(text)}
    return json.dumps(sorted(models.patterns for models in every)).encode()


def may_call(text: bytes, model: str) -> bool:
    """Return whether all clients of a text may use a model; raise Internal if it is damaged."""
    return not text or all(models.match(model) for models in _read(text))


def _read(text: bytes) -> tuple[NamePatterns, ...]:
    known = _known.get(text)
    if known is not None:
        return known
    try:
        every = tuple(NamePatterns(tuple(map(str, patterns))) for patterns in json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise Internal("a request's callable models are damaged") from error
    if not every:
        raise Internal("a request's callable models are damaged")
    return _known.remember(text, every)
