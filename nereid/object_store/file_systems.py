"""Stores' file systems by fsspec, and what each of them says of an object.

Foreign exceptions become StoreErrors here. Reads are of the object that was listed, or fail.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import logging
import re
from abc import ABC, abstractmethod
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from nereid.object_store.errors import (
    AccessRefusedError,
    MissingObjectError,
    ObjectChangedError,
    StoreError,
)
from nereid.object_store.plans.credentials import CredentialError, access_to
from nereid.object_store.plans.listing import StoredObject
from nereid.object_store.plans.urls import AZURE, GCS, S3

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.object_store.plans.credentials import StoreAccess
    from nereid.object_store.plans.urls import StoreUrl

_MD5: Final = re.compile(r"[0-9a-f]{32}")
# Begin tags of objects that have none: their MD5, or a date.
_CONTENT, _DATE = _SUBSTITUTES = ("md5 ", "date ")
# A bucket of S3's Express One Zone, whose ETags are random.
_DIRECTORY_BUCKET: Final = "--x-s3"
_LONGEST_REASON: Final = 300
# Of the stores' libraries, which need not be installed.
_REFUSALS: Final = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
_CHANGES: Final = frozenset({"ResourceModifiedError"})
_REFUSED_STATUSES: Final = (401, 403)
# Ends what nobody waits for any more: a store may list for ever.
_LONGEST_LISTING_S: Final = 600.0
# In botocore's context of a request for a page of a listing: where the page begins.
_PAGE_BEGIN: Final = "nereid_page_begin"


class _Package(NamedTuple):
    module: str
    extra: str


_PACKAGES: Final = {
    S3: _Package("s3fs", "s3"),
    GCS: _Package("gcsfs", "gcs"),
    AZURE: _Package("adlfs", "azure"),
}


class Chunk(NamedTuple):
    """A part of an object. is_md5: whether what was listed as its MD5 is one, after all."""

    content: bytes
    is_md5: bool = True


class StoreFiles(ABC):
    """A store's fsspec file system."""

    # Arguments of its listings.
    _limits: ClassVar[Mapping[str, float]] = {}

    def __init__(self, file_system: Any) -> None:
        self._fs = file_system

    def find(self, path: str) -> dict[str, Mapping[str, Any]]:
        """What fsspec says of all objects below a path, by their paths."""
        found: dict[str, Mapping[str, Any]] = self._fs.find(path, detail=True, **self._limits)
        return found

    def folder_names(self, path: str) -> list[str]:
        """The folders in a path."""
        entries = self._fs.ls(path, detail=True, **self._limits)
        folders = [each["name"].rstrip("/") for each in entries if each["type"] == "directory"]
        return sorted(each.rpartition("/")[2] for each in folders)

    def require(self, path: str) -> None:
        """Raises FileNotFoundError: there is no such bucket or folder."""
        self._fs.info(path)

    def forget_listings(self) -> None:
        """Ask the store at the next listing."""
        self._fs.invalidate_cache()

    @abstractmethod
    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        """An object, by what fsspec says of it."""

    @abstractmethod
    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        """The bytes from start to before end, of the object that was listed."""


class NoListingError(Exception):
    """The response is not one: a proxy's page, say, which has the status of success."""


def note_token(params: Mapping[str, Any], context: dict[str, Any], **_: object) -> None:
    """A handler for botocore's event before ListObjectsV2: remember where its page begins."""
    context[_PAGE_BEGIN] = params.get("ContinuationToken")


def require_listing(parsed: Mapping[str, Any], context: Mapping[str, Any], **_: object) -> None:
    """A handler for botocore's event of a ListObjectsV2 response. What the protocol does not have
    is ignored there, so that another page would be a bucket without objects. Nor is a page refused
    that is followed by itself.
    """
    if parsed["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.OK:
        return
    if "IsTruncated" not in parsed:
        raise NoListingError("the response is no listing")
    token = parsed.get("NextContinuationToken")
    if token is not None and token == context.get(_PAGE_BEGIN):
        raise NoListingError("the listing does not end: a page names itself as the next one")


class S3Files(StoreFiles):
    """s3fs."""

    _limits: ClassVar[Mapping[str, float]] = {"timeout": _LONGEST_LISTING_S}

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        tag = _etag(info)
        bucket = info["name"].partition("/")[0]
        known = _MD5.fullmatch(tag) is not None and not bucket.endswith(_DIRECTORY_BUCKET)
        md5 = tag if known else ""
        return StoredObject(info["size"] or 0, tag or _without_tag(info, "LastModified"), md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        from fsspec.asyn import sync  # noqa: PLC0415

        fs = self._fs
        bucket, key, _ = fs.split_path(path)

        async def get() -> tuple[Mapping[str, Any], bytes]:
            response = await fs._call_s3(  # noqa: SLF001 (cat_file does not say which object it is)
                "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}"
            )
            body = response["Body"]
            try:
                return response, await _read_at_most(body, end - start)
            finally:
                body.close()

        response, content = sync(fs.loop, get)
        # In place of If-Match, which not every store of this protocol knows.
        tag = _etag(response)
        if not tag and stored.tag.startswith(_DATE):
            tag = _date_tag(response.get("LastModified"))
        if stored.tag and not tag:
            raise StoreError(f"s3://{path}: the response is no object: it has no ETag")
        if tag != stored.tag:
            raise ObjectChangedError(f"s3://{path} has changed since it was listed")
        # With such keys the ETag is no MD5 of the content.
        keyed = "kms" in response.get("ServerSideEncryption", "").lower()
        return Chunk(content, not (keyed or response.get("SSECustomerAlgorithm")))


def _etag(info: Mapping[str, Any]) -> str:
    return str(info.get("ETag") or "").strip('"')


def _date_tag(date: Any) -> str:
    """A date as HTTP says it: to the second."""
    if date is None:
        return ""
    return f"{_DATE}{int(date.timestamp()) if isinstance(date, datetime) else date}"


def _without_tag(info: Mapping[str, Any], date: str, md5: str = "") -> str:
    """Return what changes with an object's content where it has neither ETag nor generation.

    Raises:
        StoreError: there is no such thing, and a change could not be noticed.
    """
    tag = f"{_CONTENT}{md5}" if md5 else _date_tag(info.get(date))
    if not tag:
        raise StoreError(
            f"{info.get('name', 'an object')}: the store says neither ETag nor date of it, so that"
            " a change could not be noticed"
        )
    return tag


async def _read_at_most(body: Any, size: int) -> bytes:
    """A response's content; one byte more than size if there is more: a store may ignore ranges."""
    pieces, left = [], size + 1
    while left and (piece := await body.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class GcsFiles(StoreFiles):
    """gcsfs."""

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        md5 = base64.b64decode(info.get("md5Hash") or "").hex()
        tag = str(info.get("generation") or "") or _without_tag(info, "updated", md5)
        return StoredObject(int(info["size"] or 0), tag, md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        which = {} if stored.tag.startswith(_SUBSTITUTES) else {"generation": stored.tag}
        try:
            return Chunk(self._fs.cat_file(path, start=start, end=end, **which))
        except FileNotFoundError:
            raise ObjectChangedError(f"gs://{path} has changed since it was listed") from None


class AzureFiles(StoreFiles):
    """adlfs."""

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        settings = info.get("content_settings") or {}
        md5 = bytes(settings.get("content_md5") or b"").hex()
        tag = str(info.get("etag") or "") or _without_tag(info, "last_modified", md5)
        return StoredObject(info["size"] or 0, tag, md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        from azure.core import MatchConditions  # noqa: PLC0415
        from fsspec.asyn import sync  # noqa: PLC0415

        fs = self._fs
        container, blob, _ = fs.split_path(path)
        which: dict[str, Any] = {}
        if not stored.tag.startswith(_SUBSTITUTES):
            which = {"etag": stored.tag, "match_condition": MatchConditions.IfNotModified}

        async def get() -> bytes:
            async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
                stream = await client.download_blob(offset=start, length=end - start, **which)
                content: bytes = await stream.readall()
                return content

        return Chunk(sync(fs.loop, get))


def missing_package(url: StoreUrl) -> str:
    """What has to be installed to open a store; empty: nothing."""
    package = _PACKAGES[url.scheme]
    if importlib.util.find_spec(package.module) is not None:
        return ""
    return f"{url.scheme}:// requires {package.module}: pip install 'nereid-mesh[{package.extra}]'"


def open_files(url: StoreUrl, environ: Mapping[str, str]) -> StoreFiles:
    """The file system of a store. Raises StoreError: a package is missing, or credentials are wrong
    in form.
    """
    missing = missing_package(url)
    if missing:
        raise StoreError(missing)
    try:
        access = access_to(url, environ)
        module = importlib.import_module(_PACKAGES[url.scheme].module)
        common = {"skip_instance_cache": True, "use_listings_cache": False}
        if url.scheme == S3:
            return S3Files(module.S3FileSystem(**common, **_s3_arguments(access)))
        if url.scheme == GCS:
            return GcsFiles(module.core.GCSFileSystem(**common, **access.arguments))
        return AzureFiles(module.AzureBlobFileSystem(**common, **_azure_arguments(access)))
    except CredentialError as error:
        raise AccessRefusedError(str(error)) from error
    except Exception as error:
        raise store_error(url.text, error) from error


def _s3_arguments(access: StoreAccess) -> dict[str, Any]:
    arguments = dict(access.arguments)
    sessions = importlib.import_module("aiobotocore.session")
    # It would name at each look at the store where its credentials come from.
    logging.getLogger("aiobotocore.credentials").setLevel(logging.WARNING)
    session = sessions.AioSession(profile=arguments.pop("profile", None))
    session.register("before-parameter-build.s3.ListObjectsV2", note_token)
    session.register("after-call.s3.ListObjectsV2", require_listing)
    return {**arguments, "session": session}


def _azure_arguments(access: StoreAccess) -> dict[str, Any]:
    if access.managed_identity is None:
        return access.arguments
    identity = importlib.import_module("azure.identity.aio")
    client = access.managed_identity
    credential = identity.ManagedIdentityCredential(**({"client_id": client} if client else {}))
    return {**access.arguments, "credential": credential}


def store_error(what: str, error: Exception) -> StoreError:
    """An error of a store's library in our words. what: the URL that was to be read."""
    if isinstance(error, StoreError):
        return error
    name = type(error).__name__
    text = str(error).strip().partition("\n")[0][:_LONGEST_REASON]
    if isinstance(error, TimeoutError) and not text:
        text = "no response in time"
    refused = isinstance(error, PermissionError) or name in _REFUSALS
    # gcsfs', aiohttp's and Azure's.
    status = getattr(error, "code", getattr(error, "status", getattr(error, "status_code", 0)))
    if refused or status in _REFUSED_STATUSES:
        return AccessRefusedError(f"{what}: access was refused: {text or name}")
    if isinstance(error, FileNotFoundError):
        return MissingObjectError(f"{what}: there is no such object or bucket")
    if name in _CHANGES:
        return ObjectChangedError(f"{what} has changed since it was listed")
    return StoreError(f"{what}: {name}: {text}" if text else f"{what}: {name}")
