"""Choice of the requests that this gateway traces, by the rules that the scheduler sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.observability.tracing import Sampler
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, TraceRule, TraceRules

_CACHED_HEADS: Final = 1024
_MAX_CACHED_HEAD_BYTES: Final = 4096


class Sampling:
    """One sampler for each model that has its own rule, and one sampler for all other models."""

    def __init__(self, default: TraceRule, *, parent_based: bool = False) -> None:
        self._parent_based = parent_based
        self._rule = default
        self._default = Sampler(default, parent_based=parent_based)
        self._rules: dict[str, TraceRule] = {}
        self._models: dict[str, Sampler] = {}
        self._by_head = BoundedCache[bytes, Sampler](_CACHED_HEADS, _MAX_CACHED_HEAD_BYTES)

    def set_rules(self, rules: TraceRules) -> None:
        """Sample by these rules from now on. The sampler of an unchanged rule keeps its count."""
        if rules.default != self._rule:
            self._rule = rules.default
            self._default = Sampler(rules.default, parent_based=self._parent_based)
        known, self._rules = self._rules, dict(rules.models)
        self._models = {
            name: self._models[name]
            if known.get(name) == rule
            else Sampler(rule, parent_based=self._parent_based)
            for name, rule in self._rules.items()
        }
        self._by_head.clear()

    @property
    def samplers(self) -> list[Sampler]:
        """All samplers that are in use."""
        return [self._default, *self._models.values()]

    def sampler_of(self, request: InferRequest) -> Sampler:
        """Return the sampler that decides about this request."""
        if not self._models:
            return self._default
        head = request.head
        return self._by_head.get(head) or self._find_by_model(head)

    def _find_by_model(self, head: bytes) -> Sampler:
        try:
            name = kserve_pb2.ModelInferRequest.FromString(head).model_name
        except DecodeError:
            return self._default
        return self._by_head.remember(head, self._models.get(name, self._default))
