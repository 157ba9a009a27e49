"""--hardened: other defaults for the flags that declare one. Explicit flags take precedence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nereid.config.flags import Topic, boolean, flag


@dataclass(frozen=True, kw_only=True)
class HardenedSettings:
    """The flag --hardened, which every service's settings have."""

    TOPIC: ClassVar = Topic.PROCESSES

    hardened: bool = flag(
        False,
        "close what is open by default, as on Triton: control APIs without credentials, model files"
        " in load requests, the python backend, metrics for other machines, mesh ports without a"
        " token; each flag that is given opens its own again",
        boolean,
        bare="true",
    )
