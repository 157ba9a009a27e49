"""Models that a client may use as steps of an ensemble that it loads.

The gateway appends PERMITTED_MODELS to the load request. The last parameter of a name counts, so a
client cannot replace the gateway's.
"""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from nereid.core.errors import InvalidArgument
from nereid.pb import kserve_pb2

PERMITTED_MODELS: Final = "nereid_permitted_models"
# Longer names never match: matching them is slow, and no folder has such a name.
_MAX_MODEL_NAME: Final = 1024


@dataclass(frozen=True)
class NamePatterns:
    """Model names, written as shell patterns."""

    patterns: tuple[str, ...]

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.patterns)) or "(?!)")

    def match(self, name: str) -> bool:
        """Return whether one of the patterns matches a name."""
        return len(name) <= _MAX_MODEL_NAME and self._compiled.match(name) is not None


@dataclass(frozen=True)
class PermittedModels:
    """Models that a principal may use. The text of a refusal names the principal."""

    principal: str
    models: NamePatterns

    def entry(self) -> bytes:
        """Return the serialised parameter, to append to a serialised RepositoryModelLoadRequest."""
        text = json.dumps({"principal": self.principal, "models": self.models.patterns})
        request = kserve_pb2.RepositoryModelLoadRequest()
        request.parameters[PERMITTED_MODELS].string_param = text
        return request.SerializeToString()


def permitted_models(request: kserve_pb2.RepositoryModelLoadRequest) -> PermittedModels | None:
    """Return a load request's permitted models; None means all. Raises InvalidArgument."""
    if PERMITTED_MODELS not in request.parameters:
        return None
    try:
        document = json.loads(request.parameters[PERMITTED_MODELS].string_param)
        patterns = tuple(str(pattern) for pattern in document["models"])
        return PermittedModels(str(document["principal"]), NamePatterns(patterns))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgument(f"invalid load parameter '{PERMITTED_MODELS}'") from error
