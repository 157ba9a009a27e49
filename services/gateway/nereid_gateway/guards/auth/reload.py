"""Reads the files of --auth-config, and reads them again when one of them changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nereid.core.files.file_watch import FileWatch
from nereid_gateway.guards.auth.config import AuthConfig, read_config
from nereid_gateway.guards.auth.tokens import TokenVerifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class LoadedConfig(NamedTuple):
    """Valid configuration, and the verifier that has its issuers' keys."""

    config: AuthConfig
    verifier: TokenVerifier | None


def load_config(path: str) -> LoadedConfig:
    """Read a configuration file and its key files. Raises AuthConfigError if one is wrong."""
    config = read_config(Path(path))
    return LoadedConfig(config, TokenVerifier(config.issuers) if config.issuers else None)


def watch_config(
    path: str, loaded: LoadedConfig, on_change: Callable[[LoadedConfig], None], **rest: float
) -> FileWatch[LoadedConfig]:
    """Return a watch of a configuration and its key files."""
    return FileWatch(
        "--auth-config",
        path,
        loaded,
        read=load_config,
        on_change=on_change,
        describe=_describe,
        files_of=_key_files,
        **rest,
    )


def _describe(loaded: LoadedConfig) -> str:
    return f"keys={len(loaded.config.keys)} issuers={len(loaded.config.issuers)}"


def _key_files(loaded: LoadedConfig) -> Iterable[str]:
    return (str(issuer.key_file) for issuer in loaded.config.issuers)
