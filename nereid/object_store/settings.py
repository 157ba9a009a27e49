"""The flags and variables of services that read model repositories in object stores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nereid.config.flags import Topic, flag, integer
from nereid.object_store.plans.credentials import VARIABLES


@dataclass(frozen=True, kw_only=True)
class RepositoryCacheSettings:
    """The flags of the cache that holds files from object stores."""

    TOPIC: ClassVar = Topic.MODELS

    repository_cache_directory: str = flag(
        "", "where models from object stores (s3://, gs://, as://) are kept on this host, which its"
        " executors may share; default: TRITON_AWS_MOUNT_DIRECTORY and the like, else"
        " nereid/repositories in the user's cache directory",
    )  # fmt: skip
    repository_cache_bytes: int = flag(
        100 << 30,
        "how large that may grow before models that are not loaded are removed from it; 0: as large"
        " as the disk allows",
        integer(0),
    )


def store_environ() -> dict[str, str]:
    """Return this process's environment variables that say how to read object stores."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def default_cache_directory() -> Path:
    """Return the default directory of the cache, in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "") or "/"
    return (Path(base) if base.startswith("/") else Path(home, ".cache")) / "nereid/repositories"
