"""Weights by which requests that name no version go to a model's versions.

The version of a key is chosen by weighted rendezvous hashing: each version has a score for the key,
and the smallest counts. All services choose alike without asking each other. If a version's weight
grows, keys move only to this version; if a version is missing, only its own keys move, to the
others in proportion.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_WEIGHT: Final = 1_000_000
MAX_VERSIONS: Final = 64
_MAX_NUMBER: Final = (1 << 63) - 1
_MAX_NAME: Final = 256

HEADER, PRINCIPAL, SEQUENCE, PARAMETER, TENSOR = (
    "header",
    "principal",
    "sequence",
    "parameter",
    "tensor",
)
_BARE: Final = frozenset({PRINCIPAL, SEQUENCE})
_NAMED: Final = frozenset({HEADER, PARAMETER, TENSOR})
_BY: Final = "expected 'by' to be header:NAME, principal, sequence, parameter:NAME or tensor:NAME"
_MEMBERS: Final = frozenset({"weights", "by"})
_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PAIR: Final = re.compile(r"([0-9]+)=([0-9]{1,7})")
# A digest has 64 bits. Half a step keeps the logarithm finite.
_STEPS: Final = float(1 << 64)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Weights by version, sorted by version, and the source of callers' keys.

    `by` is header:NAME, principal, sequence, parameter:NAME or tensor:NAME; if it is empty, each
    request is on its own. A weight of 0 keeps all requests from a version.
    """

    weights: tuple[tuple[int, int], ...]
    by: str = ""

    @property
    def kind(self) -> str:
        """Kind of the source of keys, or an empty text."""
        return self.by.partition(":")[0]

    @property
    def name(self) -> str:
        """Name of the header, parameter or tensor that has the keys, or an empty text."""
        return self.by.partition(":")[2]

    @property
    def is_keyed_by_gateway(self) -> bool:
        """True if only a gateway knows the callers' keys."""
        return self.kind in {HEADER, PRINCIPAL}

    def document(self) -> dict[str, Any]:
        """Return what `read_traffic` reads."""
        weights = {str(version): weight for version, weight in self.weights}
        return {"weights": weights, "by": self.by} if self.by else {"weights": weights}

    def __str__(self) -> str:
        shares = " ".join(f"{version}={weight}" for version, weight in self.weights)
        return f"{shares} by {self.by}" if self.by else shares


def make_traffic(weights: Mapping[int, int], by: str = "") -> Traffic:
    """Return checked traffic. Raises ValueError with the reason."""
    if not weights or len(weights) > MAX_VERSIONS:
        raise ValueError(f"expected weights of 1 to {MAX_VERSIONS} versions")
    for version, weight in weights.items():
        if not 0 < version <= _MAX_NUMBER:
            raise ValueError("expected versions to be numbers above 0")
        if type(weight) is not int or not 0 <= weight <= MAX_WEIGHT:
            raise ValueError(f"expected weights to be integers from 0 to {MAX_WEIGHT}")
    if not any(weights.values()):
        raise ValueError("expected a weight above 0")
    return Traffic(tuple(sorted(weights.items())), _parse_by(by))


def read_traffic(document: object) -> Traffic:
    """Return the traffic that a JSON document describes. Raises ValueError with the reason."""
    if not isinstance(document, dict) or not _MEMBERS.issuperset(document):
        raise ValueError("expected an object with weights and, optionally, by")
    weights, by = document.get("weights"), document.get("by", "")
    if not isinstance(weights, dict) or not all(map(_VERSION.fullmatch, weights)):
        raise ValueError('expected weights by version, such as {"3": 90, "4": 10}')
    if not isinstance(by, str) or ("by" in document and not by):
        raise ValueError(_BY)
    return make_traffic({int(version): weight for version, weight in weights.items()}, by)


def parse_traffic(text: str) -> Traffic:
    """Return the traffic in a JSON text. Raises ValueError with the reason."""
    return read_traffic(parse_json(text))


def parse_json(text: str) -> object:
    """Return the value of a JSON text. Raises ValueError, also if a name occurs twice."""
    try:
        return json.loads(text, object_pairs_hook=unique_members)
    except RecursionError:
        raise ValueError("expected JSON that is not nested") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON ({error.msg})") from None


def parse_weights(texts: Iterable[str]) -> dict[int, int]:
    """Return the weights in texts such as 3=90. Raises ValueError with the reason."""
    weights: dict[int, int] = {}
    for text in texts:
        match = _PAIR.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}': expected VERSION=WEIGHT in whole numbers, such as 3=90")
        if int(match[1]) in weights:
            raise ValueError(f"version {match[1]} has two weights")
        weights[int(match[1])] = int(match[2])
    return weights


def choose_version(model: str, key: bytes, weights: Iterable[tuple[int, int]]) -> int:
    """Return the version for a key of a model's caller; weights are above 0."""
    seed = b"%b\0%b\0" % (model.encode("utf-8", "surrogatepass"), key)
    chosen, least = 0, math.inf
    for version, weight in weights:
        digest = blake2b(b"%b%d" % (seed, version), digest_size=8).digest()
        # An exponential variable of the rate `weight`: the smallest is this one's with a
        # probability in proportion to its weight.
        score = -math.log((int.from_bytes(digest) + 0.5) / _STEPS) / weight
        if score < least:
            chosen, least = version, score
    return chosen


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; raise ValueError if a name occurs twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _parse_by(by: str) -> str:
    kind, colon, name = by.partition(":")
    if not by or (kind in _BARE and not colon):
        return by
    if kind not in _NAMED or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise ValueError(_BY)
    if kind != HEADER:
        return by
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is no name of a header")
    return f"{kind}:{name.lower()}"
