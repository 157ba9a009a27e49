"""Parts of the API that are restricted to calls with a certain header.

In front of a front where --http-restricted-api or --grpc-restricted-protocol asks for it, and
otherwise not there. The flags' syntax is Triton's: <category>,<category>:<header>=<value>.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.rpc import RpcError, Status
from nereid.services.gateway.http.routes import resolve
from nereid.services.gateway.http.server.call import TEXT, HttpCall
from nereid.services.gateway.policy.api_groups import METHODS_BY_API, ROUTES_BY_API

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from nereid.rpc import AsyncUnaryHandler, Call, Handlers, StreamHandler, UnaryHandler

_METADATA_PREFIX: Final = "triton-grpc-protocol-"
CATEGORIES: Final = tuple(ROUTES_BY_API)


class Restriction(NamedTuple):
    """The header that a category requires."""

    header: str
    value: str


def parse(text: str) -> dict[str, Restriction]:
    """The categories that one flag names, and the header that they require.

    Raises:
        ValueError: it is not of the flag's form.
    """
    names, colon, condition = text.partition(":")
    header, equals, value = condition.partition("=")
    if not (names and colon and header and equals and value):
        raise ValueError("expected <api>,<api>:<header>=<value>")
    table: dict[str, Restriction] = {}
    for name in names.split(","):
        if name not in ROUTES_BY_API:
            raise ValueError(f"'{name}' is none of {', '.join(CATEGORIES)}")
        if name in table:
            raise ValueError(f"'{name}' is named twice")
        table[name] = Restriction(header, value)
    return table


def checked(text: str) -> str:
    """text, if it is of the flag's form; else ValueError."""
    parse(text)
    return text


def gather(texts: Iterable[str]) -> dict[str, Restriction]:
    """The restrictions of a repeated flag.

    Raises:
        ValueError: two of them name one category.
    """
    table: dict[str, Restriction] = {}
    for text in texts:
        for name, restriction in parse(text).items():
            if name in table:
                raise ValueError(f"'{name}' is restricted twice")
            table[name] = restriction
    return table


class RestrictedHttp:
    """Dispatches permitted calls to the HTTP front, and refuses others."""

    def __init__(
        self, dispatch: Callable[[HttpCall], None], table: Mapping[str, Restriction]
    ) -> None:
        self._dispatch = dispatch
        self._rules = {
            kind: (each.header.lower().encode(), each.value.encode(), each.header)
            for name, each in table.items()
            for kind in ROUTES_BY_API[name]
        }

    def __call__(self, call: HttpCall) -> None:
        rule = self._rules.get(resolve(call.target).kind)
        if rule is not None and call.headers.get(rule[0]) != rule[1]:
            call.fail(403, f"This API is restricted, expecting header '{rule[2]}'", TEXT)
        else:
            self._dispatch(call)


def restricted_grpc(
    handlers: Handlers, table: Mapping[str, Restriction], statuses: MutableMapping[int, int]
) -> Handlers:
    """handlers, of which the restricted ones require their metadata; refusals are counted."""
    rules: dict[str, Restriction] = {}
    for name, each in table.items():
        rule = Restriction(_METADATA_PREFIX + each.header.lower(), each.value)
        rules |= dict.fromkeys(METHODS_BY_API[name], rule)
    return replace(
        handlers,
        unary={
            path: _unary(handler, rules[path], statuses) if path in rules else handler
            for path, handler in handlers.unary.items()
        },
        async_unary={
            path: _async_unary(handler, rules[path], statuses) if path in rules else handler
            for path, handler in handlers.async_unary.items()
        },
        stream={
            path: _stream(handler, rules[path], statuses) if path in rules else handler
            for path, handler in handlers.stream.items()
        },
    )


def _refusal(call: Call, rule: Restriction, statuses: MutableMapping[int, int]) -> str | None:
    if call.get(rule.header) == rule.value:
        return None
    statuses[Status.UNAVAILABLE] += 1
    return f"This protocol is restricted, expecting header '{rule.header}'"


def _unary(
    handler: UnaryHandler, rule: Restriction, statuses: MutableMapping[int, int]
) -> UnaryHandler:
    def handle(call: Call, message: bytes) -> None:
        refusal = _refusal(call, rule, statuses)
        if refusal is None:
            handler(call, message)
        else:
            call.fail(Status.UNAVAILABLE, refusal)

    return handle


def _async_unary(
    handler: AsyncUnaryHandler, rule: Restriction, statuses: MutableMapping[int, int]
) -> AsyncUnaryHandler:
    async def handle(call: Call, message: bytes) -> bytes:
        refusal = _refusal(call, rule, statuses)
        if refusal is not None:
            raise RpcError(Status.UNAVAILABLE, refusal)
        return await handler(call, message)

    return handle


def _stream(
    handler: StreamHandler, rule: Restriction, statuses: MutableMapping[int, int]
) -> StreamHandler:
    def handle(call: Call) -> None:
        refusal = _refusal(call, rule, statuses)
        if refusal is None:
            handler(call)
        else:
            call.fail(Status.UNAVAILABLE, refusal)

    return handle
