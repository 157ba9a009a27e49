"""Errors of object stores, and of files that are downloaded from them.

Every class here is an OSError and carries its own message. Code that reads a repository reports
every failure as an OSError.
"""

from __future__ import annotations

import errno


class StoreError(OSError):
    """Error for a store that responds wrongly or not at all; another attempt may succeed."""

    number = errno.EIO

    def __init__(self, text: str) -> None:
        super().__init__(self.number, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class AccessRefusedError(StoreError):
    """Error for credentials that are missing, wrong, expired, or without the permission."""

    number = errno.EACCES


class MissingObjectError(StoreError):
    """Error for an object, bucket or container that does not exist."""

    number = errno.ENOENT


class ObjectChangedError(StoreError):
    """Error for an object that has changed since it was listed."""

    number = errno.ESTALE


class DamagedObjectError(StoreError):
    """Error for received content that differs from the store's MD5 of the object."""


class CacheFullError(StoreError):
    """Error for files that do not fit on this host's disk, or within --repository-cache-bytes."""

    number = errno.ENOSPC


class FetchCancelledError(StoreError):
    """Error for a download that was cancelled because its files are no longer needed."""

    number = errno.ECANCELED
