"""Comparisons of models' responses with their shadows', as gateways count them."""

from __future__ import annotations

from typing import Final, NamedTuple

# Processes of gateways per model. The one that has reported least recently is forgotten.
_MAX_GATEWAYS: Final = 256


class Compared(NamedTuple):
    """Numbers of compared requests, and of those whose responses differ."""

    compared: int = 0
    differing: int = 0


class ShadowCounts:
    """Counts by model, of the shadow that is set now."""

    def __init__(self, max_gateways: int = _MAX_GATEWAYS) -> None:
        self._max_gateways = max_gateways
        # Key: a model. Value: its shadow's text, and counts by gateway.
        self._models: dict[str, tuple[str, dict[int, Compared]]] = {}

    def report(self, model: str, shadow: str, gateway: int, counts: Compared) -> None:
        """Keep what a gateway has counted of a model's present shadow."""
        known = self._models.get(model)
        if known is None or known[0] != shadow:
            known = self._models[model] = shadow, {}
        by_gateway = known[1]
        by_gateway.pop(gateway, None)
        if len(by_gateway) >= self._max_gateways:
            del by_gateway[next(iter(by_gateway))]
        by_gateway[gateway] = counts

    def total(self, model: str, shadow: str) -> Compared:
        """Return the counts of all gateways; none if they are of another shadow."""
        text, by_gateway = self._models.get(model, ("", {}))
        if text != shadow:
            return Compared()
        compared = sum(counts.compared for counts in by_gateway.values())
        return Compared(compared, sum(counts.differing for counts in by_gateway.values()))

    def forget(self, model: str) -> None:
        """Forget a model's counts."""
        self._models.pop(model, None)
