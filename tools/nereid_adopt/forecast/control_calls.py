"""Comparison of both servers' metadata, configurations, readiness and forms of statistics.

The calls block.
"""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import quote

from nereid.rpc.net.dialing import connect
from nereid.rpc.net.tls_files import reason
from nereid_adopt.forecast.config_differences import config_differences, without_defaults
from nereid_adopt.forecast.known_differences import explain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from threading import Event

    from nereid_perf.endpoint import Endpoint

_TIMEOUT_S: Final = 5.0
# All models together. Those that are left are counted.
_LIMIT_S: Final = 20.0
_MAX_BYTES: Final = 16 << 20
_MAX_DIFFERENCES: Final = 1000
_MAX_TEXT: Final = 300
_OK: Final = 200
_NOT_FOUND: Final = 404
_JSON: Final = {"Content-Type": "application/json"}
_UNREADABLE: Final = (
    *(OSError, HTTPException, ValueError),
    # Documents of another form.
    *(LookupError, TypeError, AttributeError),
)
KIND: Final = "control call"
_INDEX: Final = "/v2/repository/index"
# The server's version is its own.
_OWN_MEMBERS: Final = frozenset({"version"})


class _Reply(NamedTuple):
    status: int
    document: Any


class _Server:
    """One connection over HTTP, which is closed when it is done with."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._address = endpoint.address
        self._tls = endpoint.client_tls()
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def ask(self, path: str, method: str = "GET", content: bytes | None = None) -> _Reply:
        """Return a response, with its JSON. content: JSON. Raises OSError, HTTPException."""
        connection = self._connection
        if connection is None or connection.sock is None:
            connection = self._connection = HTTPConnection(self._address)
            connection.sock = connect(self._address, _TIMEOUT_S, self._tls)
        connection.request(method, path, content, {} if content is None else _JSON)
        response = connection.getresponse()
        body = response.read(_MAX_BYTES)
        response.close()
        try:
            return _Reply(response.status, json.loads(body or b"null"))
        except ValueError:
            return _Reply(response.status, None)

    def index(self) -> dict[tuple[str, str], str]:
        """Return why model versions are not ready, "" for those that are.

        Models without versions have the version "". Raises ValueError.
        """
        # MLServer refuses an index request without JSON.
        reply = self.ask(_INDEX, "POST", b"{}")
        if reply.status == _NOT_FOUND:
            # KServe's own server has names only.
            reply = self.ask("/v2/models")
            if reply.status == _OK:
                return {(str(name), ""): "" for name in reply.document["models"]}
        if reply.status != _OK:
            raise ValueError(f"{self._address}{_INDEX} responds with {reply.status}")
        return {
            (str(entry["name"]), str(entry.get("version") or "")): ""
            if entry.get("state") == "READY"
            else str(entry.get("reason") or entry.get("state"))
            for entry in reply.document
            if entry.get("version") or entry.get("state") == "READY"
        }


def compare_control_calls(
    old: Endpoint, new: Endpoint, is_over: Event, limit_s: float = _LIMIT_S
) -> dict[str, Any]:
    """Return the differences as a JSON document. is_over: set to ask no more."""
    differences: list[dict[str, Any]] = []
    document = {"models": 0, "not_asked": 0, "differences": differences, "unavailable": ""}

    def add(call: str, texts: Iterator[str] | list[str], model: str = "") -> None:
        for text in texts:
            if len(differences) < _MAX_DIFFERENCES:
                known = explain(KIND, call, text)
                found = {"call": call, "model": model, "difference": text[:_MAX_TEXT]}
                differences.append(found | {"known": known})

    deadline = time.monotonic() + limit_s
    try:
        with _Server(old) as of_old, _Server(new) as of_new:
            replies = of_old.ask("/v2"), of_new.ask("/v2")
            add("server metadata", _document_differences(*replies))
            indexes = of_old.index(), of_new.index()
            served = [{key for key, why in index.items() if not why} for index in indexes]
            _pair_by_name(*served)
            versions = sorted(served[0] | served[1])
            document["models"] = len(versions)
            for number, (model, version) in enumerate(versions):
                if is_over.is_set() or time.monotonic() > deadline:
                    document["not_asked"] = len(versions) - number
                    break
                name = title_of(model, version)
                if (model, version) not in served[1]:
                    why = indexes[1].get((model, version), "the mesh has no such version")
                    add("ready", [f"only the old server serves it: {why}"], name)
                elif (model, version) not in served[0]:
                    why = indexes[0].get((model, version), "the old server has no such version")
                    add("ready", [f"only the mesh serves it: {why}"], name)
                else:
                    for call, compare in _CALLS.items():
                        path = path_of(model, version) + _PATHS[call]
                        add(call, compare(of_old.ask(path), of_new.ask(path)), name)
    except _UNREADABLE as error:
        document["unavailable"] = f"control calls were not compared: {reason(error)}"
    return document


def path_of(model: str, version: str) -> str:
    """Return the path of a model's version, of the model itself for the version ""."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def title_of(model: str, version: str) -> str:
    """Return what a report calls a model's version."""
    return f"{model} version {version}" if version else model


def _pair_by_name(old: set[tuple[str, str]], new: set[tuple[str, str]]) -> None:
    """Compare a model as a whole if the old server has it without versions."""
    for name in {name for name, version in old if not version}:
        versions = {key for key in new if key[0] == name}
        if versions:
            new -= versions
            new.add((name, ""))


def _document_differences(old: _Reply, new: _Reply) -> Iterator[str]:
    """Return the members with different values."""
    if (old.status, new.status) != (_OK, _OK):
        yield from _status_differences(old, new)
        return
    for name in sorted({*old.document, *new.document} - _OWN_MEMBERS):
        values = old.document.get(name), new.document.get(name)
        if without_defaults(values[0]) != without_defaults(values[1]):
            yield f"{name}: {json.dumps(values[0])} -> {json.dumps(values[1])}"


def _status_differences(old: _Reply, new: _Reply) -> Iterator[str]:
    if old.status != new.status:
        yield f"{old.status} -> {new.status}"


def _config_differences(old: _Reply, new: _Reply) -> Iterator[str]:
    if old.status == _NOT_FOUND:
        # A server without this extension.
        return
    if (old.status, new.status) != (_OK, _OK):
        yield from _status_differences(old, new)
        return
    yield from config_differences(old.document, new.document)


def _shape_differences(old: _Reply, new: _Reply) -> Iterator[str]:
    """Return the members of statistics that only one server has: values differ always."""
    if old.status == _NOT_FOUND:
        return
    if (old.status, new.status) != (_OK, _OK):
        yield from _status_differences(old, new)
        return
    (of_old, empty_at_old), (of_new, empty_at_new) = (
        _members(reply.document) for reply in (old, new)
    )
    for whom, names in (
        ("the old server", of_old - of_new - _below(of_old, empty_at_new)),
        ("the mesh", of_new - of_old - _below(of_new, empty_at_old)),
    ):
        # The name of a member stands for those of its own members.
        yield from (f"only {whom} has {name}" for name in sorted(names - _below(names, names)))


def _members(value: Any, prefix: str = "") -> tuple[set[str], set[str]]:
    """Return the names of all members, and those of collections without any."""
    if isinstance(value, list):
        values = [("", item) for item in value]
    elif isinstance(value, dict):
        # Responses are counted by their number.
        values = [(prefix if name.isdecimal() else f"{prefix}.{name}", each)
                  for name, each in value.items()]  # fmt: skip
    else:
        return set(), set()
    names, empty = set(), set() if values else {prefix}
    for name, item in values:
        found = _members(item, name or prefix)
        names |= {name or prefix} | found[0]
        empty |= found[1]
    return names, empty


def _below(names: set[str], parents: set[str]) -> set[str]:
    return {name for name in names if any(name.startswith(f"{each}.") for each in parents)}


_CALLS: Final = {
    "ready": _status_differences,
    "metadata": _document_differences,
    "configuration": _config_differences,
    "statistics": _shape_differences,
}
_PATHS: Final[Mapping[str, str]] = {
    "ready": "/ready",
    "metadata": "",
    "configuration": "/config",
    "statistics": "/stats",
}
