"""File systems of the object stores, through fsspec, whose exceptions become StoreErrors."""

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
# Prefixes of tags for objects without a tag, made from MD5 or date.
_CONTENT, _DATE = _SUBSTITUTES = ("md5 ", "date ")
# S3 Express One Zone: ETags of such buckets are random, not MD5s.
_DIRECTORY_BUCKET: Final = "--x-s3"
_MAX_REASON_LENGTH: Final = 300
# Names of exceptions, because the stores' libraries need not be installed.
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
_REDIRECTS: Final = (301, 302, 303, 307, 308)
# S3 sends this header in a redirect to a bucket's own region.
_REGION: Final = "x-amz-bucket-region"
# Otherwise a listing could continue after nobody waits for it any more.
_MAX_LISTING_S: Final = 600.0
# A page has 1000 objects. What a store lists is kept in memory.
_MAX_PAGES: Final = 1000
# Key in botocore's context for one page of a listing. Value: token at which it begins, and number.
_PAGE: Final = "nereid_page"


class _Package(NamedTuple):
    module: str
    extra: str


_PACKAGES: Final = {
    S3: _Package("s3fs", "s3"),
    GCS: _Package("gcsfs", "gcs"),
    AZURE: _Package("adlfs", "azure"),
}


class Chunk(NamedTuple):
    """Part of an object. is_md5 is false if the listed MD5 proves to be no MD5 of the content."""

    content: bytes
    is_md5: bool = True


class StoreFiles(ABC):
    """A store's fsspec file system."""

    # Extra arguments for listing calls.
    _limits: ClassVar[Mapping[str, float]] = {}

    def __init__(self, file_system: Any) -> None:
        self._fs = file_system

    def find(self, path: str) -> dict[str, Mapping[str, Any]]:
        """Return fsspec's information about all objects below a path, by the objects' paths."""
        objects: dict[str, Mapping[str, Any]] = self._fs.find(path, detail=True, **self._limits)
        return objects

    def folder_names(self, path: str) -> list[str]:
        """Return the names of the folders in a path, sorted."""
        entries = self._fs.ls(path, detail=True, **self._limits)
        folders = [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]
        return sorted(folder.rpartition("/")[2] for folder in folders)

    def require(self, path: str) -> None:
        """Raise FileNotFoundError unless a bucket or folder exists."""
        self._fs.info(path)

    def forget_listings(self) -> None:
        """Drop cached listings, so that the next listing asks the store."""
        self._fs.invalidate_cache()

    @abstractmethod
    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        """Return the description of an object, made from fsspec's information about it."""

    @abstractmethod
    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        """Return bytes start to end - 1; raise ObjectChangedError if the object has changed."""


class NoListingError(Exception):
    """A response is no listing, such as a proxy's page with a success status."""


class RedirectError(Exception):
    """A store leads to another place."""


class ListingPages:
    """Checks of the pages of one session's listings, by botocore's handlers."""

    def __init__(self) -> None:
        # Key: the token of a page that was not asked for yet. Value: its number in its listing.
        self._numbers: dict[str, int] = {}

    def on_request(self, params: Mapping[str, Any], context: dict[str, Any], **_: object) -> None:
        """Record which page is asked for, before a ListObjectsV2 request."""
        token = params.get("ContinuationToken", "")
        context[_PAGE] = token, self._numbers.pop(token, 1)

    def on_response(
        self, parsed: Mapping[str, Any], context: Mapping[str, Any], **_: object
    ) -> None:
        """Check a page, after a ListObjectsV2 response; raise NoListingError.

        botocore takes any XML document for an empty bucket, and follows pages without end.
        """
        if parsed["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.OK:
            return
        if "IsTruncated" not in parsed:
            raise NoListingError("the response is no listing")
        begin, number = context.get(_PAGE, ("", 1))
        if token := parsed.get("NextContinuationToken"):
            if token == begin:
                raise NoListingError("the listing does not end: a page names itself as the next")
            if number == _MAX_PAGES:
                raise NoListingError(f"the listing does not end: more than {_MAX_PAGES} pages")
            self._numbers[token] = number + 1


class S3Files(StoreFiles):
    """Files in S3, accessed through s3fs."""

    _limits: ClassVar[Mapping[str, float]] = {"timeout": _MAX_LISTING_S}

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        """Return the description of an object. Its ETag may be the MD5 of its content."""
        tag = _etag(info)
        bucket = info["name"].partition("/")[0]
        known = _MD5.fullmatch(tag) is not None and not bucket.endswith(_DIRECTORY_BUCKET)
        md5 = tag if known else ""
        return StoredObject(info["size"] or 0, tag or _without_tag(info, "LastModified"), md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        """Return bytes of the object if its ETag, or else its date, is the listed one."""
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
        # Not every S3-compatible store supports If-Match, so compare the ETag here.
        tag = _etag(response)
        if not tag and stored.tag.startswith(_DATE):
            tag = _date_tag(response.get("LastModified"))
        if stored.tag and not tag:
            raise StoreError(f"s3://{path}: the response is no object: it has no ETag")
        if tag != stored.tag:
            raise ObjectChangedError(f"s3://{path} has changed since it was listed")
        # An object encrypted with a key from KMS or the customer has an ETag that is no MD5.
        keyed = "kms" in response.get("ServerSideEncryption", "").lower()
        return Chunk(content, not (keyed or response.get("SSECustomerAlgorithm")))


def _etag(info: Mapping[str, Any]) -> str:
    return str(info.get("ETag") or "").strip('"')


def _date_tag(date: Any) -> str:
    """Return a tag of a date in whole seconds, which is HTTP's precision."""
    if date is None:
        return ""
    return f"{_DATE}{int(date.timestamp()) if isinstance(date, datetime) else date}"


def _without_tag(info: Mapping[str, Any], date: str, md5: str = "") -> str:
    """Return a tag made from MD5 or date; raise StoreError if the object has neither."""
    tag = f"{_CONTENT}{md5}" if md5 else _date_tag(info.get(date))
    if not tag:
        raise StoreError(
            f"{info.get('name', 'an object')}: the store says neither ETag nor date of it, so that"
            " a change could not be noticed"
        )
    return tag


async def _read_at_most(body: Any, size: int) -> bytes:
    """Read at most size + 1 bytes: a store may ignore the range and send everything."""
    pieces, left = [], size + 1
    while left and (piece := await body.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class GcsFiles(StoreFiles):
    """Files in Google Cloud Storage, accessed through gcsfs."""

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        """Return the description of an object, with its generation as the tag."""
        md5 = base64.b64decode(info.get("md5Hash") or "").hex()
        tag = str(info.get("generation") or "") or _without_tag(info, "updated", md5)
        return StoredObject(int(info["size"] or 0), tag, md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        """Return bytes of the listed generation of the object."""
        which = {} if stored.tag.startswith(_SUBSTITUTES) else {"generation": stored.tag}
        try:
            return Chunk(self._fs.cat_file(path, start=start, end=end, **which))
        except FileNotFoundError:
            raise ObjectChangedError(f"gs://{path} has changed since it was listed") from None


class AzureFiles(StoreFiles):
    """Files in Azure Blob Storage, accessed through adlfs."""

    def describe(self, info: Mapping[str, Any]) -> StoredObject:
        """Return the description of an object, with its ETag as the tag."""
        settings = info.get("content_settings") or {}
        md5 = bytes(settings.get("content_md5") or b"").hex()
        tag = str(info.get("etag") or "") or _without_tag(info, "last_modified", md5)
        return StoredObject(info["size"] or 0, tag, md5)

    def read(self, path: str, stored: StoredObject, start: int, end: int) -> Chunk:
        """Return bytes of the object. The object's ETag must be the listed one."""
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
    """Return an error that names the Python package a store needs; empty if it is installed."""
    package = _PACKAGES[url.scheme]
    if importlib.util.find_spec(package.module) is not None:
        return ""
    return f"{url.scheme}:// requires {package.module}: pip install 'nereid-mesh[{package.extra}]'"


def open_files(url: StoreUrl, environ: Mapping[str, str]) -> StoreFiles:
    """Return a store's file system; raise StoreError without its package or for bad credentials."""
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
    # Suppress aiobotocore's line about the source of the credentials.
    logging.getLogger("aiobotocore.credentials").setLevel(logging.WARNING)
    session = sessions.AioSession(profile=arguments.pop("profile", None))
    pages = ListingPages()
    session.register("before-parameter-build.s3.ListObjectsV2", pages.on_request)
    session.register("after-call.s3.ListObjectsV2", pages.on_response)
    config = {**arguments.pop("config_kwargs", {}), "http_session_cls": _direct_session()}
    return {**arguments, "session": session, "config_kwargs": config}


def _direct_session() -> type[Any]:
    """Return aiobotocore's HTTP session, without redirects, which botocore does not follow either.

    A store could lead to what only this host reaches, and a session token would go there, too.
    """
    http = importlib.import_module("aiobotocore.httpsession")

    class DirectRequests(NamedTuple):
        session: Any

        async def request(self, *arguments: Any, **options: Any) -> Any:
            response = await self.session.request(*arguments, allow_redirects=False, **options)
            # Without the header, botocore asks for the region again and again.
            if response.status in _REDIRECTS and _REGION not in response.headers:
                response.close()
                raise RedirectError(f"the store redirects ({response.status}) to no region")
            return response

    class DirectSession(http.AIOHTTPSession):  # type: ignore[misc,name-defined]
        async def _get_session(self, proxy_url: str | None) -> DirectRequests:
            return DirectRequests(await super()._get_session(proxy_url))

    return DirectSession


def _azure_arguments(access: StoreAccess) -> dict[str, Any]:
    if access.managed_identity is None:
        return access.arguments
    identity = importlib.import_module("azure.identity.aio")
    client = access.managed_identity
    credential = identity.ManagedIdentityCredential(**({"client_id": client} if client else {}))
    return {**access.arguments, "credential": credential}


def store_error(what: str, error: Exception) -> StoreError:
    """Return the StoreError for a library's error while it read `what`, a URL."""
    if isinstance(error, StoreError):
        return error
    name = type(error).__name__
    text = str(error).strip().partition("\n")[0][:_MAX_REASON_LENGTH]
    if isinstance(error, TimeoutError) and not text:
        text = "no response in time"
    refused = isinstance(error, PermissionError) or name in _REFUSALS
    # gcsfs, aiohttp and Azure name the HTTP status differently.
    status = getattr(error, "code", getattr(error, "status", getattr(error, "status_code", 0)))
    if refused or status in _REFUSED_STATUSES:
        return AccessRefusedError(f"{what}: access was refused: {text or name}")
    if isinstance(error, FileNotFoundError):
        return MissingObjectError(f"{what}: there is no such object or bucket")
    if name in _CHANGES:
        return ObjectChangedError(f"{what} has changed since it was listed")
    return StoreError(f"{what}: {name}: {text}" if text else f"{what}: {name}")
