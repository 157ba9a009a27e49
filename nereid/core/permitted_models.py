"""The client that asks for a load or unload, and the models that may be steps of its ensembles.

The gateway appends PERMITTED_MODELS to the request. The last parameter of a name counts, so a
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


ALL_NAMES: Final = NamePatterns(("*",))


@dataclass(frozen=True)
class PermittedModels:
    """Models that a principal may use. The text of a refusal names the principal."""

    principal: str
    models: NamePatterns

    def entry(self) -> bytes:
        """Return the serialised parameter, to append to a serialised load or unload request."""
        text = json.dumps({"principal": self.principal, "models": self.models.patterns})
        request = kserve_pb2.RepositoryModelLoadRequest()
        request.parameters[PERMITTED_MODELS].string_param = text
        return request.SerializeToString()


def permitted_models(
    request: kserve_pb2.RepositoryModelLoadRequest | kserve_pb2.RepositoryModelUnloadRequest,
) -> PermittedModels | None:
    """Return the principal of a request and its permitted models. Raises InvalidArgument.

    None means that nobody is known to ask, and that all models are permitted.
    """
    if PERMITTED_MODELS not in request.parameters:
        return None
    try:
        document = json.loads(request.parameters[PERMITTED_MODELS].string_param)
        patterns = tuple(str(pattern) for pattern in document["models"])
        return PermittedModels(str(document["principal"]), NamePatterns(patterns))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgument(f"invalid load parameter '{PERMITTED_MODELS}'") from error
