"""What can go wrong with an object store and with what is fetched of it.

All are OSErrors with a text of their own: a repository that cannot be read is one, wherever it is.
"""

from __future__ import annotations

import errno


class StoreError(OSError):
    """The store does not respond, or not as it should; another attempt may succeed."""

    number = errno.EIO

    def __init__(self, text: str) -> None:
        super().__init__(self.number, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class AccessRefusedError(StoreError):
    """The credentials are missing, wrong, expired, or do not permit this."""

    number = errno.EACCES


class MissingObjectError(StoreError):
    """There is no such object, bucket or container."""

    number = errno.ENOENT


class ObjectChangedError(StoreError):
    """The object is not the one that was listed any more."""

    number = errno.ESTALE


class DamagedObjectError(StoreError):
    """What was received is not what the store says that the object is."""


class CacheFullError(StoreError):
    """The files do not fit on this host's disk, or not within --repository-cache-bytes."""

    number = errno.ENOSPC


class FetchCancelledError(StoreError):
    """Nobody needs the files any more."""

    number = errno.ECANCELED
