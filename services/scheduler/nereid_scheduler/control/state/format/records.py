"""How a record is written: a line with the schema's number and a checksum, then a JSON object.

Pure. The first line is the same in all schemas to come, so that every scheduler can know a record
that is damaged from one that a newer scheduler has written.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = 1
# Of one record, without the files that it names.
MAX_RECORD_BYTES: Final = 16 << 20

_MAGIC: Final = b"nereid-state"
_CHECKSUM_BYTES: Final = 32
_NAME_BYTES: Final = 16
_FILE_DIGEST_BYTES: Final = 32


class DamagedRecord(ValueError):
    """It is not what was written."""


class NewerRecord(ValueError):
    """It is whole, and of a schema that this scheduler does not know."""


class Record(NamedTuple):
    """key: what it is about; document: what it says, of JSON's types."""

    key: str
    document: Mapping[str, Any]


def record_name(key: str) -> str:
    """The name of a key's record in a store: no path, whatever the key is."""
    return hashlib.blake2b(key.encode(), digest_size=_NAME_BYTES).hexdigest()


def file_digest(content: bytes) -> str:
    """By which a record names a file."""
    return hashlib.blake2b(content, digest_size=_FILE_DIGEST_BYTES).hexdigest()


def encode_record(record: Record, secret: bytes = b"") -> bytes:
    """secret: of all who may write records (at most 64 bytes); empty: the checksum is no proof of
    who wrote it.
    """
    body = json.dumps({"key": record.key, "document": dict(record.document)}).encode()
    return _head(SCHEMA, body, secret) + body


def decode_record(name: str, data: bytes, secret: bytes = b"") -> Record:
    """The record that a store has under a name.

    Raises:
        DamagedRecord: it is truncated or altered, stands under another's name, or was written with
            another secret.
        NewerRecord: it is whole, but only a newer scheduler can read it.
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
    """The first line, which no other record has: what a write compares. Empty for no record."""
    return data[: data.find(b"\n") + 1]


def _schema(data: bytes) -> int:
    magic, _, rest = head_of(data).partition(b" ")
    number = rest.partition(b" ")[0]
    # A longer number is none that a checksum was made with.
    if magic != _MAGIC or not number.isdigit() or len(number) > 9:
        raise DamagedRecord("it does not begin as records do")
    return int(number)


def _head(schema: int, body: bytes, secret: bytes) -> bytes:
    digest = hashlib.blake2b(b"%d\n" % schema, digest_size=_CHECKSUM_BYTES, key=secret)
    digest.update(body)
    return b"%b %d %b\n" % (_MAGIC, schema, digest.hexdigest().encode())
