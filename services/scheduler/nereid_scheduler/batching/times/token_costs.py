"""Fixed cost of an execution beside the cost of a token, for batches of padded tokens.

A line is fitted to the time of each token over 1 / tokens, so that errors count relative to a
batch's time: its slope is the fixed cost, and its value at 0 the cost of a token.
"""

from __future__ import annotations

from typing import Final

# The weight of the newest batch. The first batches have equal weights.
_WEIGHT: Final = 1 / 64
# Until batches differ enough to be compared, an execution is assumed to cost as much as this many
# tokens: MiniLM costs 12 on one core.
_ASSUMED: Final = 16.0
_FEWEST: Final = 16
# Minimum variance of 1 / tokens, relative to the square of its mean.
_MIN_VARIANCE: Final = 0.04
# A batch counts at most this many times the time that the line says, as a host may stall.
_MOST: Final = 3.0
# Fixed cost where tokens seem to cost nothing, as on a GPU that is not busy.
_MAX_TOKENS: Final = 1e6


class TokenCosts:
    """Costs of one version's batches; `fixed_tokens` is the fixed cost as a number of tokens."""

    __slots__ = ("_count", "_each", "_products", "_shares", "_squares", "fixed_tokens")

    def __init__(self) -> None:
        self.fixed_tokens = _ASSUMED
        self._count = 0
        # Moving averages: 1 / tokens (a token's share), time of a token, and their products.
        self._shares = self._each = self._squares = self._products = 0.0

    def record(self, tokens: int, taken_ns: float) -> None:
        """Record a batch with this number of padded tokens."""
        share, each = 1 / tokens, taken_ns / tokens
        line = self._line()
        if line is not None:
            fixed_ns, token_ns = line
            each = min(each, _MOST * (token_ns + fixed_ns * share))
        self._count += 1
        weight = max(_WEIGHT, 1 / self._count)
        self._shares += weight * (share - self._shares)
        self._each += weight * (each - self._each)
        self._squares += weight * (share * share - self._squares)
        self._products += weight * (share * each - self._products)
        line = self._line()
        if line is not None:
            fixed_ns, token_ns = line
            self.fixed_tokens = (
                min(fixed_ns / token_ns, _MAX_TOKENS) if token_ns > 0 else _MAX_TOKENS
            )

    def _line(self) -> tuple[float, float] | None:
        """Return the fixed cost and the cost of a token; `None` if batches hardly differ."""
        variance = self._squares - self._shares * self._shares
        if self._count < _FEWEST or variance < _MIN_VARIANCE * self._shares * self._shares:
            return None
        fixed_ns = max(0.0, (self._products - self._shares * self._each) / variance)
        return fixed_ns, max(0.0, self._each - fixed_ns * self._shares)
