"""Bodies of calls, decoded into structs. Errors name the parameter, as OpenAI's do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_gateway.plane.request_decoding import RequestDecoding
    from nereid_gateway.server.call import HttpCall
    from nereid_gateway.server.content_coding import ContentCoder

    Blob = bytes | memoryview

# Messages of a call, or parts of one.
_MAX_ITEMS: Final = 4096
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*?)`")
_PLACE: Final = re.compile(r" - at `\$\.?(?P<path>.*?)`\Z", re.DOTALL)


# Smaller responses are not compressed: all of OpenAI's clients accept it, and few mean it.
_COMPRESS_BYTES: Final = 16 << 10
# Elements of a field, as many as OpenAI takes tokens in a call. The event loop unpickles what a
# decoder process returns.
_MAX_ELEMENTS: Final = 300_000


# Texts of a call.
MAX_TEXTS: Final = 2048


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of a call. Fields that it does not declare are refused."""


Decoded = TypeVar("Decoded", bound=Body)
Struct = TypeVar("Struct", bound=msgspec.Struct)


class BodyReader:
    """Decompresses and decodes the bodies of calls, and compresses those of their responses."""

    def __init__(self, decoding: RequestDecoding, coder: ContentCoder) -> None:
        self._decoding = decoding
        self._coder = coder

    async def read(self, call: HttpCall, body_type: type[Decoded]) -> Decoded:
        """Return the body of a call. A decoder process decodes large ones.

        Raises InvalidArgument for a body that is no such struct.
        """
        await self.decompress(call)
        result, _ = await self._decoding.run_text_job(call.peer, call.body, decode_job, body_type)
        try:
            if isinstance(result, InvalidParameter):
                raise result
            body: Decoded = result
            return body
        finally:
            # An error refers to this frame, and would stay in memory until cycles are collected.
            del result

    async def decompress(self, call: HttpCall) -> None:
        """Decompress the body of a call if it is compressed."""
        encoding = call.headers.get(b"content-encoding")
        if encoding is not None:
            call.body = await self._coder.decompress(call.body, encoding, call.peer, call.hold)

    async def encode(self, call: HttpCall, body: Sequence[bytes]) -> tuple[Sequence[bytes], bytes]:
        """Return the body of a response, compressed if that pays, and the header line for it."""
        if sum(map(len, body)) < _COMPRESS_BYTES:
            return body, b""
        return await self._coder.encode(body, call.headers.get(b"accept-encoding"), call.peer)


def decode_job(
    blobs: Sequence[Blob], body_type: type[Body]
) -> tuple[Body | InvalidParameter, list[Blob]]:
    """Return a decoded body and no blobs.

    An InvalidParameter is returned: a decoder process would raise it without the parameter's name.
    """
    try:
        return decode(blobs[0], body_type), []
    except InvalidParameter as error:
        return error, []


def decode(content: Blob, body_type: type[Decoded]) -> Decoded:
    """Return a decoded body; raise InvalidArgument if it is invalid."""
    try:
        body = msgspec.json.decode(content, type=body_type)
        _check_elements(body)
        return body
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(
            f"We could not parse the JSON body of your request: {error}. The API expects a JSON"
            " object."
        ) from None


def _check_elements(body: Body) -> None:
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if not isinstance(value, list | dict):
            continue
        count = len(value) + sum(len(each) for each in value if isinstance(each, list))
        if count > _MAX_ELEMENTS:
            raise InvalidParameter(
                name,
                f"'{name}' has {count} elements, more than {_MAX_ELEMENTS}; send several requests.",
                "array_above_max_length",
            )


def convert(value: Any, struct: type[Struct], path: str) -> Struct:
    """Return a decoded JSON object as a struct. path: of the object, for errors.

    Raises InvalidArgument.
    """
    try:
        return msgspec.convert(value, type=struct)
    except msgspec.ValidationError as error:
        raise _explained(str(error), path) from None


def _explained(text: str, parent: str = "") -> InvalidArgument:
    place = _PLACE.search(text)
    path = _joined(parent, place["path"]) if place else parent
    reason = text[: place.start()] if place else text
    if match := _UNKNOWN.match(reason):
        name = _joined(path, match["name"])
        return InvalidParameter(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
    if match := _MISSING.match(reason):
        return missing(_joined(path, match["name"]))
    if not path:
        return InvalidArgument(f"{reason}.")
    code = "invalid_type" if reason.startswith("Expected") else "invalid_value"
    return InvalidParameter(path, f"Invalid value for '{path}': {reason}.", code)


def missing(parameter: str) -> InvalidParameter:
    """Return the error for a body that lacks a parameter."""
    return InvalidParameter(
        parameter, f"Missing required parameter: '{parameter}'.", "missing_required_parameter"
    )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def check_count(parameter: str, items: Sequence[object], most: int = _MAX_ITEMS) -> None:
    """Raise InvalidParameter for more items than one call may have."""
    if len(items) > most:
        raise InvalidParameter(
            parameter,
            f"'{parameter}' has {len(items)} items, more than {most}.",
            "array_above_max_length",
        )


def texts_of(value: Any, parameter: str = "input", max_texts: int = MAX_TEXTS) -> list[Any]:
    """Return a list of texts or of token ids from `str | list[str] | list[int] | list[list[int]]`.

    Raises InvalidParameter if the list is empty, too long or mixed.
    """
    if isinstance(value, str):
        return [value]
    if not value:
        raise InvalidParameter(parameter, f"'{parameter}' cannot be an empty array.", "empty_array")
    kinds = set(map(type, value))
    if len(kinds) > 1:
        raise InvalidParameter(
            parameter, f"'{parameter}' mixes texts and token ids.", "invalid_type"
        )
    items = [value] if kinds == {int} else list(value)
    if len(items) > max_texts:
        raise InvalidParameter(
            parameter,
            f"'{parameter}' has {len(items)} items, more than {max_texts}; send several requests.",
            "array_above_max_length",
        )
    if kinds != {str} and not all(items):
        raise InvalidParameter(parameter, f"'{parameter}' has an empty list of tokens.")
    return items
