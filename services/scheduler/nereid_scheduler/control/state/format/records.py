"""Encodes and decodes records: a line with schema number and checksum, then a JSON object.

The first line has the same format in all schemas, so that a scheduler can tell damaged records from
newer ones.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = 1
MAX_RECORD_BYTES: Final = 16 << 20

_MAGIC: Final = b"nereid-state"
_CHECKSUM_BYTES: Final = 32
_NAME_BYTES: Final = 16
_FILE_DIGEST_BYTES: Final = 32


class DamagedRecord(ValueError):
    """The record differs from what a scheduler has written."""


class NewerRecord(ValueError):
    """The record is complete, but has a schema that this scheduler does not know."""


class Record(NamedTuple):
    """A record: the key of its subject, and a document of JSON's types."""

    key: str
    document: Mapping[str, Any]


def record_name(key: str) -> str:
    """Return the name of a key's record in a store. It is never a path, whatever the key is."""
    return hashlib.blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()


def file_digest(content: bytes) -> str:
    """Return the digest of a file, by which a record names the file."""
    return hashlib.blake2b(content, digest_size=_FILE_DIGEST_BYTES).hexdigest()


def encode_record(record: Record, secret: bytes = b"") -> bytes:
    """Return the bytes of a record.

    secret: at most 64 bytes. If it is empty, the checksum does not prove who wrote the record.
    """
    body = json.dumps({"key": record.key, "document": dict(record.document)}).encode()
    return _head(SCHEMA, body, secret) + body


def decode_record(name: str, data: bytes, secret: bytes = b"") -> Record:
    """Return a record; raise DamagedRecord if it was altered or written with another secret.

    Raises NewerRecord if the record is whole, but only a newer scheduler can read it.
    """
    schema = _schema(data)
    body = data[len(head_of(data)) :]
    if not hmac.compare_digest(_head(schema, body, secret), head_of(data)):
        raise DamagedRecord("its checksum does not match")
    if schema > SCHEMA:
        raise NewerRecord(f"it has schema {schema}; this scheduler knows those up to {SCHEMA}")
    try:
        content = json.loads(body)
        record = Record(content["key"], content["document"])
        named = record_name(record.key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedRecord("it is no record") from error
    if named != name or type(record.document) is not dict:
        raise DamagedRecord("it is another's record")
    return record


def head_of(data: bytes) -> bytes:
    """Return a record's first line, which is unique: writes compare it. Empty without a record."""
    return data[: data.find(b"\n") + 1]


def _schema(data: bytes) -> int:
    magic, _, rest = head_of(data).partition(b" ")
    number = rest.partition(b" ")[0]
    if magic != _MAGIC or not number.isdigit() or len(number) > 9:
        raise DamagedRecord("it does not begin as records do")
    return int(number)


def _head(schema: int, body: bytes, secret: bytes) -> bytes:
    digest = hashlib.blake2b(b"%d\n" % schema, digest_size=_CHECKSUM_BYTES, key=secret)
    digest.update(body)
    return b"%b %d %b\n" % (_MAGIC, schema, digest.hexdigest().encode())
