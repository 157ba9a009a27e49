"""Which models the steps of an ensemble may be that a client loads: a gateway adds it to the load
request of a principal whose grant names models. The last one in a message counts, so that clients
cannot say it themselves.
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

# The parameter of the load request.
PERMITTED_MODELS: Final = "nereid_permitted_models"
# Matching takes time by the length of a name; no model's folder has a longer one.
_MAX_MODEL_NAME: Final = 1024


@dataclass(frozen=True)
class NamePatterns:
    """Names of models, as patterns in a shell have them."""

    patterns: tuple[str, ...]

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.patterns)) or "(?!)")

    def match(self, name: str) -> bool:
        """Whether some pattern covers a name."""
        return len(name) <= _MAX_MODEL_NAME and self._compiled.match(name) is not None


@dataclass(frozen=True)
class PermittedModels:
    """principal: whose they are, for the text of the refusal."""

    principal: str
    models: NamePatterns

    def entry(self) -> bytes:
        """What is added to a serialised RepositoryModelLoadRequest."""
        text = json.dumps({"principal": self.principal, "models": self.models.patterns})
        request = kserve_pb2.RepositoryModelLoadRequest()
        request.parameters[PERMITTED_MODELS].string_param = text
        return request.SerializeToString()


def permitted_models(request: kserve_pb2.RepositoryModelLoadRequest) -> PermittedModels | None:
    """Those of a load request; None: all models are.

    Raises:
        InvalidArgument: no gateway has written it.
    """
    if PERMITTED_MODELS not in request.parameters:
        return None
    try:
        document = json.loads(request.parameters[PERMITTED_MODELS].string_param)
        patterns = tuple(str(each) for each in document["models"])
        return PermittedModels(str(document["principal"]), NamePatterns(patterns))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgument(f"invalid load parameter '{PERMITTED_MODELS}'") from error
