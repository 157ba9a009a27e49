"""Credentials for repositories in object stores, as in Triton.

TRITON_CLOUD_CREDENTIAL_PATH names a JSON file with the sections s3, gs and as, which map URL
prefixes to credentials. The longest prefix counts. Without the file, other variables and the
stores' libraries provide credentials.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.object_store.plans.urls import AZURE, GCS, S3

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.object_store.plans.urls import StoreUrl

CREDENTIAL_FILE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
MOUNT_DIRECTORIES: Final = {
    S3: "TRITON_AWS_MOUNT_DIRECTORY",
    GCS: "TRITON_GCS_MOUNT_DIRECTORY",
    AZURE: "TRITON_AZURE_MOUNT_DIRECTORY",
}
_AZURE_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT"
_AZURE_KEY: Final = "AZURE_STORAGE_KEY"
_AZURE_AUTH_TYPE: Final = "AZURE_STORAGE_AUTH_TYPE"
_AZURE_CLIENT: Final = "AZURE_STORAGE_CLIENT_ID"
# The stores' libraries read further variables.
VARIABLES: Final = (
    CREDENTIAL_FILE,
    *MOUNT_DIRECTORIES.values(),
    _AZURE_ACCOUNT,
    _AZURE_KEY,
    _AZURE_AUTH_TYPE,
    _AZURE_CLIENT,
)
_MANAGED_IDENTITY: Final = "managed_identity"
_AUTH_TYPES: Final = ("", "default", _MANAGED_IDENTITY)


class CredentialError(Exception):
    """Error for unusable credentials. The text names the reason, but no secret."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Arguments for a store's fsspec file system.

    managed_identity: an Azure client id; empty is the default identity, `None` is none.
    """

    arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    managed_identity: str | None = None


def read_credentials(environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the credential file's document, or `None`; may raise CredentialError."""
    path = environ.get(CREDENTIAL_FILE, "")
    if not path:
        return None
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CredentialError(f"{CREDENTIAL_FILE}: '{path}': {error.strerror}") from error
    except ValueError as error:
        # The error's text may quote a secret, so it is left out.
        raise CredentialError(f"{CREDENTIAL_FILE}: '{path}' is not JSON") from error
    if not isinstance(document, dict):
        raise CredentialError(f"{CREDENTIAL_FILE}: '{path}' is not a JSON object")
    return document


def select_credential(url: StoreUrl, document: Mapping[str, Any]) -> object:
    """Return the entry with the longest prefix of the URL, or `None`; may raise CredentialError."""
    section = document.get(url.scheme, {})
    if not isinstance(section, dict):
        raise CredentialError(f"{CREDENTIAL_FILE}: '{url.scheme}' is not a JSON object")
    matching = [name for name in section if url.text.startswith(name)]
    return section[max(matching, key=len)] if matching else None


def access_to(url: StoreUrl, environ: Mapping[str, str]) -> StoreAccess:
    """Return the arguments for opening this URL's store; raise CredentialError if malformed."""
    document = read_credentials(environ)
    credential = None if document is None else select_credential(url, document)
    if url.scheme == GCS:
        return _gcs_access(credential)
    texts = _texts(credential, url)
    return _s3_access(url, texts) if url.scheme == S3 else _azure_access(url, texts, environ)


def _texts(credential: object, url: StoreUrl) -> dict[str, str]:
    if credential is None:
        return {}
    if not isinstance(credential, dict) or not all(
        isinstance(text, str) for text in credential.values()
    ):
        raise CredentialError(f"{CREDENTIAL_FILE}: the entry for {url} is no object of texts")
    return {name: text for name, text in credential.items() if text}


def _s3_access(url: StoreUrl, texts: Mapping[str, str]) -> StoreAccess:
    names = {"key": "key_id", "secret": "secret_key", "token": "session_token"}
    arguments: dict[str, Any] = {
        name: texts[field] for name, field in names.items() if field in texts
    }
    if "profile" in texts:
        arguments["profile"] = texts["profile"]
    if "region" in texts:
        arguments["client_kwargs"] = {"region_name": texts["region"]}
    if url.endpoint:
        # Few S3-compatible stores have a host name per bucket, so put the bucket into the path.
        arguments["endpoint_url"] = url.endpoint
        arguments["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return StoreAccess(arguments)


def _gcs_access(credential: object) -> StoreAccess:
    if credential is None or credential == "":
        return StoreAccess()
    if not isinstance(credential, str):
        raise CredentialError(f"{CREDENTIAL_FILE}: an entry of '{GCS}' is no path of a file")
    return StoreAccess({"token": credential})


def _azure_access(
    url: StoreUrl, texts: Mapping[str, str], environ: Mapping[str, str]
) -> StoreAccess:
    if not texts and environ.get(_AZURE_ACCOUNT) in (None, "", url.account):
        texts = {
            "account_key": environ.get(_AZURE_KEY, ""),
            "auth_type": environ.get(_AZURE_AUTH_TYPE, ""),
            "client_id": environ.get(_AZURE_CLIENT, ""),
        }
    auth_type = texts.get("auth_type", "")
    if auth_type not in _AUTH_TYPES:
        raise CredentialError(f"the auth_type of {url} is '{auth_type}', not {_MANAGED_IDENTITY}")
    arguments = {"account_name": url.account}
    if auth_type == _MANAGED_IDENTITY:
        return StoreAccess(arguments, texts.get("client_id", ""))
    if not auth_type and texts.get("account_key"):
        arguments["account_key"] = texts["account_key"]
    return StoreAccess(arguments)
