"""The URLs of repositories in object stores, in Triton's forms. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

S3: Final = "s3"
GCS: Final = "gs"
AZURE: Final = "as"
_SCHEMES: Final = (S3, GCS, AZURE)
_FORMS: Final = {
    S3: "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    GCS: "gs://bucket/path",
    AZURE: "as://account_name/container_name/path",
}
_HOST_AND_PORT: Final = re.compile(r"(?:[0-9A-Za-z.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]+")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A place in an object store.

    text: the URL without a slash at its end. path: bucket or container, and prefix of the keys.
    endpoint: http(s)://host:port of an S3 store that is not Amazon's; account: Azure's.
    """

    text: str
    scheme: str
    path: str
    endpoint: str = ""
    account: str = ""

    @property
    def name(self) -> str:
        """The last component."""
        return self.path.rpartition("/")[2]

    def child(self, name: str) -> StoreUrl:
        """A place below this one."""
        return replace(self, text=f"{self.text}/{name}", path=f"{self.path}/{name}")

    def parent(self) -> StoreUrl:
        """The place that this one is in; not to be called of a bucket."""
        text, path = self.text.rpartition("/")[0], self.path.rpartition("/")[0]
        return replace(self, text=text, path=path)

    def __str__(self) -> str:
        return self.text


def is_store_url(text: str) -> bool:
    """Whether this is meant to be such a URL, and no path."""
    scheme, colon, _ = text.partition("://")
    return bool(colon) and scheme in _SCHEMES


def parse_store_url(text: str) -> StoreUrl:
    """Raises ValueError: no bucket or container is named."""
    scheme, _, rest = text.partition("://")
    text = text.rstrip("/")
    endpoint = account = ""
    path = rest.strip("/")
    if scheme == S3:
        endpoint, path = _s3_endpoint(path)
    elif scheme == AZURE:
        account, _, path = path.partition("/")
    components = path.split("/")
    if not all(components) or {".", ".."}.intersection(components):
        raise ValueError(f"expected {_FORMS[scheme]}")
    return StoreUrl(text, scheme, path, endpoint, account)


def _s3_endpoint(path: str) -> tuple[str, str]:
    """Endpoint and path; without a protocol it is http, as on Triton."""
    for protocol in ("https://", "http://"):
        if path.startswith(protocol):
            host, _, path = path.removeprefix(protocol).partition("/")
            return protocol + host, path
    host, _, rest = path.partition("/")
    if _HOST_AND_PORT.fullmatch(host):
        return f"http://{host}", rest
    return "", path
