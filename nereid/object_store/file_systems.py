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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.object_store.bounds import BoundedRequests
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
# S3 sends this header in a redirect to a bucket's own region.
_REGION: Final = "x-amz-bucket-region"
# Otherwise an operation could continue after nobody waits for it any more.
_MAX_OPERATION_S: Final = 600.0


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

    def __init__(self, file_system: Any) -> None:
        self._fs = file_system

    def find(self, path: str) -> dict[str, Mapping[str, Any]]:
        """Return fsspec's information about all objects below a path, by the objects' paths."""
        objects: dict[str, Mapping[str, Any]] = self._fs.find(
            path, detail=True, timeout=_MAX_OPERATION_S
        )
        return objects

    def folder_names(self, path: str) -> list[str]:
        """Return the names of the folders in a path, sorted."""
        entries = self._fs.ls(path, detail=True, timeout=_MAX_OPERATION_S)
        folders = [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]
        return sorted(folder.rpartition("/")[2] for folder in folders)

    def require(self, path: str) -> None:
        """Raise FileNotFoundError unless a bucket or folder exists."""
        self._fs.info(path, timeout=_MAX_OPERATION_S)

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


def _check_page(parsed: Mapping[str, Any], **_: object) -> None:
    """Raise NoListingError for a ListObjectsV2 response that botocore takes for an empty bucket."""
    if (
        parsed["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.OK
        and "IsTruncated" not in parsed
    ):
        raise NoListingError("the response is no listing")


class S3Files(StoreFiles):
    """Files in S3, accessed through s3fs."""

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
                return response, await body.read()
            finally:
                body.close()

        response, content = sync(fs.loop, get, timeout=_MAX_OPERATION_S)
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
            content = self._fs.cat_file(
                path, start=start, end=end, timeout=_MAX_OPERATION_S, **which
            )
        except FileNotFoundError:
            raise ObjectChangedError(f"gs://{path} has changed since it was listed") from None
        return Chunk(content)


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

        return Chunk(sync(fs.loop, get, timeout=_MAX_OPERATION_S))


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
            session = {"middlewares": (BoundedRequests(),)}
            return GcsFiles(
                module.core.GCSFileSystem(**common, session_kwargs=session, **access.arguments)
            )
        files = module.AzureBlobFileSystem(**common, **_azure_arguments(access))
        _bound_azure(files)
        return AzureFiles(files)
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
    session.register("after-call.s3.ListObjectsV2", _check_page)
    config = {**arguments.pop("config_kwargs", {}), "http_session_cls": _bounded_session()}
    return {**arguments, "session": session, "config_kwargs": config}


def _bounded_session() -> type[Any]:
    """Return aiobotocore's HTTP session with bounds; botocore itself reads S3's redirects."""
    http = importlib.import_module("aiobotocore.httpsession")
    options = {"allow_redirects": False, "middlewares": (BoundedRequests(_REGION),)}

    class Requests(NamedTuple):
        session: Any

        async def request(self, *arguments: Any, **more: Any) -> Any:
            return await self.session.request(*arguments, **options, **more)

    class BoundedSession(http.AIOHTTPSession):  # type: ignore[misc,name-defined]
        async def _get_session(self, proxy_url: str | None) -> Requests:
            return Requests(await super()._get_session(proxy_url))

    return BoundedSession


def _bound_azure(file_system: Any) -> None:
    """Give adlfs's file system a session with bounds, for which it has no argument."""
    from fsspec.asyn import sync  # noqa: PLC0415

    http = importlib.import_module("aiohttp")

    async def open_session() -> Any:
        # As azure.core's own, but aiohttp decompresses, because it does so in small pieces.
        return http.ClientSession(
            trust_env=True, cookie_jar=http.DummyCookieJar(), middlewares=(BoundedRequests(),)
        )

    transport = file_system.service_client._pipeline._transport  # noqa: SLF001
    transport.session = sync(file_system.loop, open_session)


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
