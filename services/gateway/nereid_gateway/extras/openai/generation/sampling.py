"""Parameters of sampling as a client names them, checked against what its model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid_gateway.extras.openai.bodies import check_count
from nereid_gateway.extras.openai.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.text.generation import Generation

# Values that change nothing, so a model need not take them.
_NEUTRAL: Final[Mapping[str, tuple[float, ...]]] = {
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "frequency_penalty": (0.0,),
    "presence_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
}
# The gateway applies these itself if the model does not.
_APPLIED_HERE: Final = frozenset({"max_tokens", "stop"})
_MAX_STOP_CHARACTERS: Final = 256


class Sampling(NamedTuple):
    """Wishes of a client for each text. Values are by the names of nereid.text.generation."""

    values: Mapping[str, Any]
    stop: tuple[str, ...] = ()
    max_tokens: int = 0
    # Number of alternatives for each token, or None without logprobs.
    logprobs: int | None = None
    # Output has to match this schema, or is any JSON object if it is empty.
    schema: Mapping[str, Any] | None = None
    # Keys: token ids.
    bias: Mapping[int, float] | None = None


def check_stop(stop: str | list[str] | None, parameter: str, most: int) -> tuple[str, ...]:
    """Return the texts that end a text; raise InvalidParameter for too many or empty ones."""
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    check_count(parameter, texts, most)
    if not all(0 < len(text) <= _MAX_STOP_CHARACTERS for text in texts):
        raise InvalidParameter(
            parameter,
            f"Invalid value for '{parameter}': expected texts of 1 to {_MAX_STOP_CHARACTERS}"
            " characters.",
            "invalid_value",
        )
    return texts


def fitting_values(
    values: Mapping[str, Any], generation: Generation, *, samples_here: bool
) -> dict[str, Any]:
    """Return the values that a model takes; raise InvalidParameter for one that it does not.

    values: None for what the client left out. samples_here: the gateway samples by logits.
    """
    fitting = {}
    for name, value in values.items():
        if value is None or name in _APPLIED_HERE:
            continue
        if samples_here or generation.takes(name):
            fitting[name] = value
        elif value not in _NEUTRAL.get(name, ()):
            raise not_taken(name)
    return fitting


def not_taken(parameter: str) -> InvalidParameter:
    """Return the error for a parameter that the model does not take."""
    return InvalidParameter(
        parameter,
        f"Unsupported parameter: '{parameter}' is not supported with this model.",
        "unsupported_parameter",
    )
