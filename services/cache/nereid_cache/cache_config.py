"""Parsing of --cache-config: a store and its options, in Triton's form 'name,option=value'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.config.flags import boolean, integer, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OPTION: Final = re.compile(r"[a-z_]+=")
_DEFAULT_BYTES: Final = 256 << 20
USER_VARIABLE: Final = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE: Final = "TRITONCACHE_REDIS_PASSWORD"  # noqa: S105 - the variable's name
CACHE_VARIABLES: Final = (USER_VARIABLE, PASSWORD_VARIABLE)
_SCHEMES: Final = ("redis", "rediss", "unix")
_SENTINELS: Final = frozenset({"sentinel_user", "sentinel_password"})
_SECRET: Final = ("password", "sentinel_password")
_MANY: Final = ("sentinel", "cluster")


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """Options of the store in memory; ttl in seconds, 0 keeps values until they are evicted."""

    size: int = _DEFAULT_BYTES
    ttl: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RedisConfig:
    """Options of one Redis server, of sentinels, or of a cluster.

    Timeouts are in ms, ttl in s; 0 means no limit. url takes precedence over host and port:
    redis://, rediss://, unix://, redis+sentinel://host,host/service or redis+cluster://host,host;
    rediss+ uses TLS. sentinel_user, sentinel_password: for the sentinels. tls_sni: name in the
    certificate.
    """

    host: str = ""
    port: int = 6379
    url: str = ""
    user: str = ""
    password: str = ""
    sentinel_user: str = ""
    sentinel_password: str = ""
    db: int = 0
    connect_timeout: int = 1000
    socket_timeout: int = 1000
    pool_size: int = 1
    wait_timeout: int = 1000
    tls_enabled: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_cacert: str = ""
    tls_cacert_dir: str = ""
    tls_sni: str = ""
    ttl: float = 0.0
    namespace: str = "nereid"

    def __repr__(self) -> str:
        # This text is logged, so it must not contain a password.
        return f"RedisConfig({self.host or '(by url)'}:{self.port}, db {self.db})"


CacheConfig = LocalConfig | RedisConfig


def _first_line(path: str) -> str:
    try:
        line = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(error.strerror if isinstance(error, OSError) else "not text") from error
    if not line:
        raise ValueError("its first line is empty")
    return line


_natural = integer(0)
_LOCAL_OPTIONS: Final[dict[str, Callable[[str], object]]] = {"size": integer(1), "ttl": seconds}
_REDIS_OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "host": str,
    "port": integer(1, 65535),
    "url": str,
    "user": str,
    "password": str,
    "password_file": _first_line,
    "sentinel_user": str,
    "sentinel_password": str,
    "db": _natural,
    "connect_timeout": _natural,
    "socket_timeout": _natural,
    "pool_size": integer(1, 1024),
    "wait_timeout": _natural,
    "tls_enabled": boolean,
    "tls_cert": str,
    "tls_key": str,
    "tls_cacert": str,
    "tls_cacert_dir": str,
    "tls_sni": str,
    "ttl": seconds,
    "namespace": str,
}
# Triton's names for the TLS options other than tls_enabled.
_TRITON_NAMES: Final = {
    name.removeprefix("tls_"): name
    for name in ("tls_cert", "tls_key", "tls_cacert", "tls_cacert_dir", "tls_sni")
}
_KINDS: Final = {"local": _LOCAL_OPTIONS, "redis": _REDIS_OPTIONS}


def checked_option(text: str) -> str:
    """Return the text of one flag if its form is right; parse_cache_config() checks the rest."""
    name, comma, rest = text.partition(",")
    if name not in _KINDS:
        raise ValueError("expected local,option=value or redis,option=value")
    if comma and not _OPTION.match(rest):
        raise ValueError(f"expected {name},option=value")
    return text


def parse_cache_config(texts: Sequence[str], environ: Mapping[str, str]) -> CacheConfig:
    """Return the store of all flags, or raise ValueError with one line per error."""
    names = {text.partition(",")[0] for text in texts}
    if len(names) > 1:
        raise ValueError("only one cache can be configured, not local and redis at once")
    name = names.pop() if names else "local"
    known = _KINDS[name]
    errors = []
    values: dict[str, Any] = {}
    for written, text in _options(texts):
        option = _TRITON_NAMES.get(written, written) if name == "redis" else written
        if option not in known:
            errors.append(f"{name} has no option '{written}'; it has {', '.join(known)}")
            continue
        try:
            values[option] = known[option](text)
        except ValueError as error:
            shown = "…" if option in _SECRET else text
            errors.append(f"{name},{written}={shown}: {error}")
    if name == "redis":
        errors += _redis_errors(values)
        if "password_file" in values:
            values["password"] = values.pop("password_file")
        # An option in a flag takes precedence over its environment variable.
        values.setdefault("user", environ.get(USER_VARIABLE, ""))
        values.setdefault("password", environ.get(PASSWORD_VARIABLE, ""))
    if errors:
        raise ValueError("\n".join(errors))
    return RedisConfig(**values) if name == "redis" else LocalConfig(**values)


def _options(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options. A piece without one continues a URL that contains commas."""
    options: list[tuple[str, str]] = []
    for text in texts:
        for piece in text.split(",")[1:]:
            option, _, value = piece.partition("=")
            if _OPTION.match(piece) or not options:
                options.append((option, value))
            else:
                last, value = options[-1]
                options[-1] = (last, f"{value},{piece}")
    return options


def _redis_errors(values: Mapping[str, object]) -> list[str]:
    errors = []
    url = str(values.get("url", ""))
    if not url and not values.get("host"):
        errors.append("redis: host or url is required")
    if url and values.get("host"):
        errors.append("redis: host and url exclude each other")
    if "password" in values and "password_file" in values:
        errors.append("redis: password and password_file exclude each other")
    scheme, _, rest = url.partition("://")
    kind, _, variant = scheme.partition("+")
    if url and (kind not in _SCHEMES or (variant and (variant not in _MANY or kind == "unix"))):
        errors.append(
            "redis: url must begin with redis://, rediss://, unix://, or redis or rediss with"
            " +sentinel or +cluster"
        )
    elif variant == "sentinel" and not rest.partition("/")[2].partition("/")[0]:
        errors.append("redis: the url of sentinels must name the service: …/service")
    elif variant != "sentinel" and (given := _SENTINELS.intersection(values)):
        errors.append(f"redis: {', '.join(sorted(given))}: needs a url of sentinels")
    return errors + _tls_errors(values, kind, variant)


def _tls_errors(values: Mapping[str, object], kind: str, variant: str) -> list[str]:
    """Return an error for each combination that looks like TLS but would not use it."""
    errors = []
    given = [option for option in _TRITON_NAMES.values() if values.get(option)]
    enabled = kind == "rediss" or bool(values.get("tls_enabled"))
    if kind and not variant and enabled and kind != "rediss":
        errors.append(f"redis: tls_enabled=true, but url begins with {kind}://, not rediss://")
    if given and not enabled:
        errors.append(f"redis: {', '.join(given)}: needs tls_enabled=true, or rediss in url")
    if variant and values.get("tls_sni"):
        errors.append("redis: tls_sni is for one server, not for sentinels or a cluster")
    if variant == "cluster" and values.get("tls_cacert_dir"):
        errors.append("redis: a cluster takes tls_cacert, not tls_cacert_dir")
    for option in given:
        path = str(values[option])
        if option != "tls_sni" and not Path(path).exists():
            errors.append(f"redis: {option}: '{path}' does not exist")
    return errors
