"""Request headers of gRPC over HTTP/2: each block of fields is parsed only once.

While the dynamic table does not change, the block's bytes are the cache key. Otherwise the indexed
fields are the key, and the literal fields are added to a copy of the cached headers.
"""

# layout: compiled

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.rpc.grpc.compression import ACCEPTED, ENCODINGS, reply_encoding
from nereid.rpc.grpc.metadata import (
    Metadata,
    decode_pairs,
    encode_message,
    literal,
    parse_timeout_s,
)
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.http2.frames import Code, Http2StreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.http2.header_decoder import Decoded, Field, HeaderDecoder

_CONTENT_TYPE: Final = literal(b"content-type", b"application/grpc")
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
# Values keep surrounding spaces, as in gRPC's own implementations but unlike RFC 9113 8.2.1.
_VALUE: Final = re.compile(rb"[^\x00\r\n]*\Z")
_PSEUDO_VALUE: Final = re.compile(rb"(?:[^\x00\r\n\t ](?:[^\x00\r\n]*[^\x00\r\n\t ])?)?\Z")
_SPACES: Final = b" \t"
_NUMBER: Final = re.compile(rb"[0-9]{1,18}\Z")
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_ONLY: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_RESERVED: Final = frozenset(
    (
        b"te",
        b"content-type",
        b"content-length",
        b"host",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-message-type",
        b"grpc-status",
        b"grpc-message",
        b"grpc-status-details-bin",
    )
)
_CACHED_BLOCKS: Final = 64
# Limit for one connection.
_CACHED_BLOCK_BYTES: Final = 65_536
# Each field beyond this number is charged to the sender, unless the block is cached.
_FREE_FIELDS: Final = 32
_FIELDS_PER_UNIT: Final = 2
CACHED_INDEXED_HEADERS: Final = 1024


class RequestHeaders:
    """Parsed headers of a request. `refusal` is the response if no handler may get the call."""

    __slots__ = (
        "accepted",
        "content_length",
        "encoding",
        "metadata",
        "path",
        "refusal",
        "reply_encoding",
        "route",
        "timeout_s",
    )

    def __init__(self) -> None:
        self.path = ""
        self.metadata: Metadata = ()
        self.timeout_s: float | None = None
        self.encoding = ""
        self.accepted = b""
        # `None` means that responses are not compressed.
        self.reply_encoding: str | None = None
        self.content_length: int | None = None
        self.refusal: Refusal | None = None
        self.route: Any = None

    def copy(self) -> RequestHeaders:
        """Return a copy that may be changed. The cached headers must stay as they are."""
        headers = RequestHeaders()
        headers.path = self.path
        headers.metadata = self.metadata
        headers.timeout_s = self.timeout_s
        headers.encoding = self.encoding
        headers.accepted = self.accepted
        headers.reply_encoding = self.reply_encoding
        headers.content_length = self.content_length
        headers.refusal = self.refusal
        headers.route = self.route
        return headers


class Refusal:
    """Response without a handler: an HTTP status, a gRPC status with its message, and trailers."""

    __slots__ = ("http_status", "message", "status", "trailers")

    def __init__(
        self, http_status: int, status: Status, message: str, trailers: Metadata = ()
    ) -> None:
        self.http_status = http_status
        self.status = status
        self.message = message
        self.trailers = trailers

    def block(self) -> bytes:
        """Return the header block of a response whose HTTP status is not 200."""
        block = literal(b":status", b"%d" % self.http_status) + _CONTENT_TYPE
        if self.http_status == HTTPStatus.METHOD_NOT_ALLOWED:
            block += literal(b"allow", b"POST")
        block += literal(b"grpc-status", b"%d" % self.status)
        return block + literal(b"grpc-message", encode_message(self.message))


OVERSIZED: Final = RequestHeaders()
OVERSIZED.refusal = Refusal(200, Status.RESOURCE_EXHAUSTED, "the request's metadata is too large")


class RequestHeadersReader:
    """Reader of one connection's header blocks.

    Connections of a server may share `indexed_headers`: the headers that indexed fields make.
    """

    __slots__ = (
        "_blocks",
        "_compression",
        "_decoder",
        "_indexed_headers",
        "_routes",
        "_spend",
    )

    def __init__(
        self,
        decoder: HeaderDecoder,
        routes: dict[str, Any],
        indexed_headers: BoundedCache[tuple[Field | None, ...], RequestHeaders],
        compression: str = "none",
        spend: Callable[[float], None] | None = None,
    ) -> None:
        """Create a reader; `spend` charges the work for unusual blocks (FloodBudget.spend)."""
        self._spend = spend
        self._compression = compression
        self._decoder = decoder
        self._routes = routes
        self._indexed_headers = indexed_headers
        self._blocks: BoundedCache[bytes, RequestHeaders] = BoundedCache(
            _CACHED_BLOCKS, max_total_bytes=_CACHED_BLOCK_BYTES
        )

    def read(self, block: bytes) -> RequestHeaders:
        """Return the headers of a request.

        Raises Http2StreamError for a malformed block, and Http2ConnectionError for one that cannot
        be decoded.
        """
        headers = self._blocks.get(block)
        if headers is not None:
            return headers
        decoder = self._decoder
        before = decoder.generation
        decoded = decoder.decode(block)
        extra = len(decoded.fields) - _FREE_FIELDS
        if extra > 0 and self._spend is not None:
            self._spend(extra / _FIELDS_PER_UNIT)
        if decoder.generation != before:
            # The dynamic table has changed. Clear the cache first, because a malformed block has
            # changed the table as well.
            self._blocks.clear()
        headers = self._parse(decoded)
        if decoder.generation == before:
            self._blocks.remember(block, headers)
        return headers

    def skip(self, block: bytes) -> None:
        """Decode an unused block, so that the dynamic table stays the same as the client's."""
        if block not in self._blocks:
            before = self._decoder.generation
            self._decoder.decode(block)
            if self._decoder.generation != before:
                self._blocks.clear()

    def check_trailers(self, block: bytes) -> None:
        """Check that a request's trailers are well formed. They have no meaning in gRPC."""
        decoded = self._decoder.decode(block)
        self._blocks.clear()
        for name, value in decoded.fields:
            _check_regular(name, value)

    def _parse(self, decoded: Decoded) -> RequestHeaders:
        if decoded.oversized:
            return OVERSIZED
        key: list[Field | None] = list(decoded.fields)
        fresh: list[Field] = []
        for place in decoded.fresh:
            field = decoded.fields[place]
            name = field[0]
            if name == b"grpc-timeout" or not (name[:1] == b":" or name in _RESERVED):
                fresh.append(field)
                key[place] = None
        shape = tuple(key)
        base = self._indexed_headers.get(shape)
        if base is None:
            base = parse_headers(shape)
            self._set_route(base)
            self._indexed_headers.remember(shape, base)
        if not fresh:
            return base
        if _has_any(base, fresh):
            # Fields of the same name must keep their order, so parse all of them.
            headers = parse_headers(tuple(decoded.fields))
            self._set_route(headers)
            return headers
        return _overlay(base, fresh)

    def _set_route(self, headers: RequestHeaders) -> None:
        headers.route = self._routes.get(headers.path)
        if headers.route is None and headers.refusal is None:
            headers.refusal = Refusal(200, Status.UNIMPLEMENTED, f"unknown method {headers.path}")
        elif headers.route is not None and headers.route.compressible:
            headers.reply_encoding = reply_encoding(self._compression, headers.accepted)


def parse_headers(fields: tuple[Field | None, ...]) -> RequestHeaders:
    """Parse the fields of a request. None marks the place of a field that is added later."""
    headers = RequestHeaders()
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    metadata: list[tuple[str, str | bytes]] = []
    only_regular = False
    try:
        for field in fields:
            if field is None:
                only_regular = True
                continue
            name, value = field
            if name[:1] == b":":
                if only_regular or name not in _PSEUDO or name in pseudo:
                    raise Http2StreamError(Code.PROTOCOL_ERROR, "misplaced pseudo-header")
                if _PSEUDO_VALUE.match(value) is None:
                    raise Http2StreamError(Code.PROTOCOL_ERROR, "malformed pseudo-header")
                pseudo[name] = value
                continue
            only_regular = True
            _check_regular(name, value)
            if name not in _RESERVED:
                metadata.extend(decode_pairs(name, value))
            elif name == b"content-length" and regular.get(name, value) != value:
                raise Http2StreamError(Code.PROTOCOL_ERROR, "contradictory content-length")
            else:
                regular[name] = value
    except RpcError as error:
        headers.refusal = Refusal(200, error.status, error.message)
    headers.metadata = tuple(metadata)
    _read_pseudo(headers, pseudo)
    _read_regular(headers, regular)
    return headers


def _check_regular(name: bytes, value: bytes) -> None:
    if _NAME.match(name) is None or name in _CONNECTION_ONLY or _VALUE.match(value) is None:
        raise Http2StreamError(Code.PROTOCOL_ERROR, "malformed header field")
    if name == b"te" and value != b"trailers":
        raise Http2StreamError(Code.PROTOCOL_ERROR, "te other than trailers")


def _read_pseudo(headers: RequestHeaders, pseudo: dict[bytes, bytes]) -> None:
    method, path = pseudo.get(b":method"), pseudo.get(b":path", b"")
    if method == b"CONNECT":
        if not pseudo.get(b":authority") or len(pseudo) > 2:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "malformed CONNECT")
    elif not method or not path or not pseudo.get(b":scheme"):
        raise Http2StreamError(Code.PROTOCOL_ERROR, "missing pseudo-header")
    headers.path = path.decode("latin-1")
    if method != b"POST":
        headers.refusal = Refusal(405, Status.INTERNAL, "gRPC calls are POST requests")


def _read_regular(headers: RequestHeaders, regular: dict[bytes, bytes]) -> None:
    length = regular.get(b"content-length")
    if length is not None:
        if _NUMBER.match(length) is None:
            raise Http2StreamError(Code.PROTOCOL_ERROR, "malformed content-length")
        headers.content_length = int(length)
    kind = regular.get(b"content-type", b"")
    if kind[:16] != b"application/grpc" or kind[16:17] not in {b"", b"+", b";"}:
        headers.refusal = headers.refusal or Refusal(
            415, Status.UNKNOWN, "content-type is not gRPC's"
        )
    encoding = regular.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in ENCODINGS:
        headers.refusal = headers.refusal or Refusal(
            200,
            Status.UNIMPLEMENTED,
            f"unknown compression {encoding}",
            (("grpc-accept-encoding", ACCEPTED),),
        )
    headers.encoding = encoding
    headers.accepted = regular.get(b"grpc-accept-encoding", b"")
    if b"grpc-timeout" in regular:
        _read_timeout(headers, regular[b"grpc-timeout"])


def _read_timeout(headers: RequestHeaders, text: bytes) -> None:
    headers.timeout_s = parse_timeout_s(text.strip(_SPACES))
    if headers.timeout_s is None and headers.refusal is None:
        headers.refusal = Refusal(200, Status.INTERNAL, "malformed grpc-timeout")


def _has_any(base: RequestHeaders, fresh: list[Field]) -> bool:
    names = {name for name, _ in fresh}
    if base.timeout_s is not None and b"grpc-timeout" in names:
        return True
    return any(name.encode() in names for name, _ in base.metadata)


def _overlay(base: RequestHeaders, fresh: list[Field]) -> RequestHeaders:
    headers = base.copy()
    extra: list[tuple[str, str | bytes]] = []
    for name, value in fresh:
        _check_regular(name, value)
        if name == b"grpc-timeout":
            _read_timeout(headers, value)
            continue
        try:
            extra.extend(decode_pairs(name, value))
        except RpcError as error:
            headers.refusal = headers.refusal or Refusal(200, error.status, error.message)
    if extra:
        headers.metadata = (*headers.metadata, *extra)
    return headers
