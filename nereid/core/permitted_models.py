"""Models that may be steps of an ensemble that a client loads.

A gateway adds this to the load request of a principal whose grant names models. The last such
parameter in a message counts, so that clients cannot set it themselves.
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

# Parameter of the load request.
PERMITTED_MODELS: Final = "nereid_permitted_models"
# Length limit of a name: matching takes time by a name's length, and no model's folder has a longer
# name.
_MAX_MODEL_NAME: Final = 1024


@dataclass(frozen=True)
class NamePatterns:
    """Names of models, as shell patterns."""

    patterns: tuple[str, ...]

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.patterns)) or "(?!)")

    def match(self, name: str) -> bool:
        """Return whether some pattern covers a name."""
        return len(name) <= _MAX_MODEL_NAME and self._compiled.match(name) is not None


@dataclass(frozen=True)
class PermittedModels:
    """Models permitted to a principal.

    principal: name of the principal, for the text of the refusal.
    """

    principal: str
    models: NamePatterns

    def entry(self) -> bytes:
        """Return the bytes to append to a serialised RepositoryModelLoadRequest."""
        text = json.dumps({"principal": self.principal, "models": self.models.patterns})
        request = kserve_pb2.RepositoryModelLoadRequest()
        request.parameters[PERMITTED_MODELS].string_param = text
        return request.SerializeToString()


def permitted_models(request: kserve_pb2.RepositoryModelLoadRequest) -> PermittedModels | None:
    """Return the permitted models of a load request; None if all models are.

    Raises:
        InvalidArgument: the parameter was not written by a gateway.
    """
    if PERMITTED_MODELS not in request.parameters:
        return None
    try:
        document = json.loads(request.parameters[PERMITTED_MODELS].string_param)
        patterns = tuple(str(pattern) for pattern in document["models"])
        return PermittedModels(str(document["principal"]), NamePatterns(patterns))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgument(f"invalid load parameter '{PERMITTED_MODELS}'") from error
