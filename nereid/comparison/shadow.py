"""Shadow of a model: what gets copies of its requests, of how many, and when responses are equal.

This module must not import numpy: schedulers and gateways read shadows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from nereid.comparison.rules import parse_tensor_rules
from nereid.core.errors import InvalidArgument
from nereid.core.traffic.weights import parse_json

if TYPE_CHECKING:
    from nereid.comparison.rules import TensorRules

VERSION, MODEL, URL = "version", "model", "url"
KEEP: Final = ("all", "digest", "none")
_MAX_TEXT: Final = 256
_MAX_TIMEOUT_S: Final = 3600.0
_TARGET: Final = (
    "expected to be version:NUMBER, model:NAME, or url:grpc://HOST:PORT/NAME of another server"
)
_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}")
_URL: Final = re.compile(r"grpc://((?:\[[0-9A-Fa-f:.]+\]|[^/:@\s]+):[0-9]{1,5})/([^\s]+)")


@dataclass(frozen=True, slots=True)
class Shadow:
    """Shadow of a model.

    to: as `read_shadow` accepts it. percent: share of the requests that are copied, 0: none for
    now. rules: text form of the outputs' rules. keep_inputs: what the report keeps of inputs that
    lead to differences, one of `KEEP`.
    """

    to: str
    percent: float = 100.0
    rules: str = ""
    timeout_s: float = 10.0
    keep_inputs: str = KEEP[0]

    @property
    def kind(self) -> str:
        """Kind of the target: version, model or url."""
        return self.to.partition(":")[0]

    @property
    def target(self) -> str:
        """Number of the version, name of the model, or the URL."""
        return self.to.partition(":")[2]

    @property
    def server(self) -> tuple[str, str]:
        """Address of the other server, and the model's name there; empty for the mesh's models."""
        match = _URL.fullmatch(self.target)
        return ("", "") if match is None else (match[1], match[2])

    def tensor_rules(self) -> TensorRules:
        """Return the rules of the outputs."""
        return parse_tensor_rules(self.rules)

    def document(self) -> dict[str, Any]:
        """Return what `read_shadow` reads."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def text(self) -> str:
        """Return the document as JSON."""
        return json.dumps(self.document())

    def __str__(self) -> str:
        rules = f", {self.rules}" if self.rules else ""
        return f"{self.percent:g}% to {self.to}{rules}"


_MEMBERS: Final = frozenset(each.name for each in fields(Shadow))


def read_shadow(document: object) -> Shadow:
    """Return the shadow that a JSON document describes. Raises ValueError with the reason."""
    if not isinstance(document, dict) or not _MEMBERS.issuperset(document):
        raise ValueError(f"expected an object with to and, optionally, {_optional()}")
    shadow = Shadow(**{"to": "", **document})
    _check_target(shadow)
    if not _is_number(shadow.percent) or not 0 <= shadow.percent <= 100:
        raise ValueError("expected percent to be a number from 0 to 100")
    if not _is_number(shadow.timeout_s) or not 0 < shadow.timeout_s <= _MAX_TIMEOUT_S:
        raise ValueError(f"expected timeout_s to be above 0, at most {_MAX_TIMEOUT_S:g}")
    if shadow.keep_inputs not in KEEP:
        raise ValueError(f"expected keep_inputs to be {', '.join(KEEP)}")
    try:
        # Another type is no text of a rule either.
        parse_tensor_rules(shadow.rules if isinstance(shadow.rules, str) else "?")
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    return shadow


def check_other_model(name: str, shadow: Shadow) -> None:
    """Raise ValueError if a model's shadow is the model itself."""
    if (shadow.kind, shadow.target) == (MODEL, name):
        raise ValueError(f"model '{name}' is no shadow of itself: name a version")


def parse_shadow(text: str) -> Shadow:
    """Return the shadow in a JSON text. Raises ValueError with the reason."""
    return read_shadow(parse_json(text))


def _check_target(shadow: Shadow) -> None:
    if not isinstance(shadow.to, str) or len(shadow.to) > _MAX_TEXT:
        raise ValueError(_TARGET)
    target = shadow.target
    valid = {
        VERSION: bool(_VERSION.fullmatch(target)),
        MODEL: bool(target) and target.isprintable(),
        URL: bool(shadow.server[0]),
    }
    if not valid.get(shadow.kind):
        raise ValueError(_TARGET)


def _is_number(value: object) -> bool:
    return type(value) in {int, float} and isfinite(value)  # type: ignore[arg-type]


def _optional() -> str:
    return ", ".join(sorted(_MEMBERS - {"to"}))
