"""Reads the TOML file that --auth-config names, and reports all errors at once."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nereid.core.files.file_watch import FileError
from nereid_gateway.core.access.api_groups import APIS
from nereid_gateway.core.access.grant import ALL, ALL_APIS, Grant, Limits, Permission

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ASYMMETRIC: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_SYMMETRIC: Final = frozenset({"HS256", "HS384", "HS512"})
_NAME: Final = re.compile(r"[\w.:@/+ -]{1,100}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_GRANT: Final = frozenset({"rights", "models", "requests_per_second", "burst", "concurrency"})
_MAX_FILE_BYTES: Final = 16 << 20


class AuthConfigError(FileError):
    """Raised if the configuration file cannot be used. `errors` has one line for each reason."""


@dataclass(frozen=True)
class ApiKey:
    """Named client with an API key. It has several digests while its key is being replaced."""

    name: str
    digests: tuple[str, ...]
    grant: Grant


@dataclass(frozen=True)
class Issuer:
    """Signer of tokens, and how its tokens are verified. Exactly one of the three files is set."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    jwks_file: Path | None = None
    public_key_file: Path | None = None
    secret_file: Path | None = None
    # A dot in the name leads into a nested object.
    roles_claim: str = "roles"
    leeway_s: float = 30.0

    @property
    def key_file(self) -> Path:
        """File with the keys that verify tokens."""
        path = self.jwks_file or self.public_key_file or self.secret_file
        assert path is not None, "checked when the file was read"
        return path


@dataclass(frozen=True)
class AuthConfig:
    """Contents of the configuration file."""

    keys: tuple[ApiKey, ...] = ()
    # If it is None, calls without credentials are refused.
    anonymous: Grant | None = None
    roles: Mapping[str, Grant] = field(default_factory=dict)
    issuers: tuple[Issuer, ...] = ()

    def open_apis(self) -> frozenset[str]:
        """Return the groups of APIs that need no credentials."""
        grant = self.anonymous
        return frozenset() if grant is None else frozenset(filter(grant.permits, APIS))


def read_config(path: Path) -> AuthConfig:
    """Return a file's configuration, or raise AuthConfigError. Paths are relative to the file."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise AuthConfigError([f"the file is larger than {_MAX_FILE_BYTES} bytes"])
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AuthConfigError([f"cannot be read: {error.strerror or error}"]) from error
    except ValueError as error:
        if isinstance(error, AuthConfigError):
            raise
        raise AuthConfigError([f"not TOML: {error}"]) from error
    return parse_config(document, path.parent)


def parse_config(document: Mapping[str, Any], folder: Path) -> AuthConfig:
    """Return the configuration in a file's parsed contents, or raise AuthConfigError."""
    parser = _Parser(folder)
    top = parser.table(document, "the file", {"keys", "anonymous", "roles", "issuers"})
    anonymous = top.get("anonymous")
    config = AuthConfig(
        keys=tuple(
            parser.api_key(entry, f"keys[{index}]")
            for index, entry in enumerate(parser.tables(top, "keys"))
        ),
        anonymous=None if anonymous is None else parser.grant(anonymous, "anonymous"),
        roles={
            name: parser.grant(entry, f"roles.{name}")
            for name, entry in parser.table(top.get("roles", {}), "roles").items()
        },
        issuers=tuple(
            parser.issuer(entry, f"issuers[{index}]")
            for index, entry in enumerate(parser.tables(top, "issuers"))
        ),
    )
    parser.check_unique("key name", [key.name for key in config.keys])
    parser.check_unique("sha256", [digest for key in config.keys for digest in key.digests])
    parser.check_unique("issuer", [issuer.issuer for issuer in config.issuers])
    if not (config.keys or config.issuers):
        parser.errors.append("neither [[keys]] nor [[issuers]]: nobody could authenticate")
    if parser.errors:
        raise AuthConfigError(parser.errors)
    return config


class _Parser:
    """Collects mistakes in `errors`, one line for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.errors: list[str] = []

    def check_unique(self, what: str, values: list[str]) -> None:
        seen: set[str] = set()
        for value in values:
            if value in seen:
                self.errors.append(f"{what} '{value}' is there twice")
            seen.add(value)

    def table(
        self, value: Any, where: str, known: set[str] | frozenset[str] | None = None
    ) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.errors.append(f"{where}: expected a table")
            return {}
        if known is not None:
            self.errors += [
                f"{where}: unknown setting '{name}'; it has {', '.join(sorted(known))}"
                for name in value
                if name not in known
            ]
        return value

    def tables(self, top: Mapping[str, Any], name: str) -> list[Any]:
        value = top.get(name, [])
        if isinstance(value, list):
            return value
        self.errors.append(f"{name}: expected [[{name}]]")
        return []

    def api_key(self, value: Any, where: str) -> ApiKey:
        entry = self.table(value, where, _GRANT | {"name", "sha256"})
        name = self._text(entry, "name", where)
        if name and not _NAME.fullmatch(name):
            self.errors.append(
                f"{where}: name must be up to 100 letters, digits, spaces and . : @ / + _ -"
            )
        digests = self._texts(entry, "sha256", where, single=True)
        if not digests or not all(_SHA256.fullmatch(digest) for digest in digests):
            self.errors.append(
                f"{where}: sha256 must be the key's SHA-256 in 64 lower-case hexadecimal digits,"
                " or a list of such; `nereid api-key` makes a key and its entry"
            )
        return ApiKey(name, digests, self._grant(entry, where))

    def grant(self, value: Any, where: str) -> Grant:
        return self._grant(self.table(value, where, _GRANT), where)

    def _grant(self, entry: Mapping[str, Any], where: str) -> Grant:
        rights = frozenset(self._texts(entry, "rights", where))
        unknown = rights.difference(APIS, {ALL})
        if unknown:
            self.errors.append(
                f"{where}: {', '.join(map(repr, sorted(unknown)))}: rights are"
                f" {', '.join(sorted(APIS))} and {ALL}"
            )
        if "rights" not in entry:
            self.errors.append(f"{where}: rights is missing")
        models = self._texts(entry, "models", where) if "models" in entry else None
        rate = self._number(entry, "requests_per_second", where, 1e-3)
        burst = self._number(entry, "burst", where, 1)
        if burst is not None and rate is None:
            self.errors.append(f"{where}: burst needs requests_per_second")
        if burst is None:
            # By default, the burst is one second's requests, but at least one.
            burst = max(1.0, rate or 1.0)
        concurrency = self._number(entry, "concurrency", where, 1)
        limits = Limits(rate, burst, None if concurrency is None else int(concurrency))
        return Grant((Permission(ALL_APIS if ALL in rights else rights, models),), limits)

    def issuer(self, value: Any, where: str) -> Issuer:
        files = ("jwks_file", "public_key_file", "secret_file")
        names = {"issuer", "audience", "algorithms", "roles_claim", "leeway_s", *files}
        entry = self.table(value, where, names)
        named = [name for name in files if name in entry]
        if len(named) != 1:
            self.errors.append(f"{where}: expected one of {', '.join(files)}")
        paths = {name: self._folder / self._text(entry, name, where) for name in named}
        possible = _SYMMETRIC if "secret_file" in entry else _ASYMMETRIC
        algorithms = self._texts(entry, "algorithms", where)
        if not algorithms or not set(algorithms) <= possible:
            self.errors.append(
                f"{where}: algorithms must be some of {', '.join(sorted(possible))}"
                + (f" with {named[0]}" if named else "")
            )
        leeway_s = self._number(entry, "leeway_s", where, 0)
        return Issuer(
            self._text(entry, "issuer", where),
            self._text(entry, "audience", where),
            algorithms,
            **paths,
            roles_claim=self._text(entry, "roles_claim", where, "roles"),
            leeway_s=30.0 if leeway_s is None else leeway_s,
        )

    def _text(self, entry: Mapping[str, Any], name: str, where: str, default: str = "") -> str:
        value = entry.get(name, default)
        if isinstance(value, str) and value:
            return value
        self.errors.append(f"{where}: {name} must be a text that is not empty")
        return ""

    def _texts(
        self, entry: Mapping[str, Any], name: str, where: str, *, single: bool = False
    ) -> tuple[str, ...]:
        value = entry.get(name, [])
        if single and isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
        self.errors.append(f"{where}: {name} must be a list of texts")
        return ()

    def _number(
        self, entry: Mapping[str, Any], name: str, where: str, least: float
    ) -> float | None:
        value = entry.get(name)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and least <= value < float("inf"):
            return float(value)
        self.errors.append(f"{where}: {name} must be a number of at least {least:g}")
        return None
