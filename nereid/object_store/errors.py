"""Errors of object stores. All are OSErrors, as is any failure to read a repository."""

from __future__ import annotations

import errno


class StoreError(OSError):
    """A store responds wrongly or not at all; another attempt may succeed."""

    number = errno.EIO

    def __init__(self, text: str) -> None:
        super().__init__(self.number, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class AccessRefusedError(StoreError):
    """Credentials are missing, wrong, expired, or without the permission."""

    number = errno.EACCES


class MissingObjectError(StoreError):
    """An object, bucket or container does not exist."""

    number = errno.ENOENT


class ObjectChangedError(StoreError):
    """An object has changed since it was listed."""

    number = errno.ESTALE


class DamagedObjectError(StoreError):
    """The received content differs from the store's MD5."""


class CacheFullError(StoreError):
    """Files do not fit on this host's disk, or within --repository-cache-bytes."""

    number = errno.ENOSPC


class FetchCancelledError(StoreError):
    """A download was cancelled because nobody needs its files any more."""

    number = errno.ECANCELED
