"""The URLs of repositories in object stores, in Triton's forms."""

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
    """A location in an object store.

    text: URL without trailing slash. path: bucket or container, then the keys' prefix. endpoint:
    http(s)://host:port of an S3 store that is not Amazon's. account: Azure's.
    """

    text: str
    scheme: str
    path: str
    endpoint: str = ""
    account: str = ""

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rpartition("/")[2]

    def child(self, name: str) -> StoreUrl:
        """Return the location of the child with this name."""
        return replace(self, text=f"{self.text}/{name}", path=f"{self.path}/{name}")

    def parent(self) -> StoreUrl:
        """Return the parent folder. A bucket has no parent, so do not call this on one."""
        text, path = self.text.rpartition("/")[0], self.path.rpartition("/")[0]
        return replace(self, text=text, path=path)

    def __str__(self) -> str:
        return self.text


def is_store_url(text: str) -> bool:
    """Return whether a text is meant as the URL of an object store rather than as a path."""
    scheme, colon, _ = text.partition("://")
    return bool(colon) and scheme in _SCHEMES


def parse_store_url(text: str) -> StoreUrl:
    """Return the location of a URL; raise ValueError without a bucket or for ".."."""
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
    """Return endpoint and path. As in Triton, an endpoint without a protocol uses http."""
    for protocol in ("https://", "http://"):
        if path.startswith(protocol):
            host, _, path = path.removeprefix(protocol).partition("/")
            return protocol + host, path
    host, _, rest = path.partition("/")
    if _HOST_AND_PORT.fullmatch(host):
        return f"http://{host}", rest
    return "", path
