"""Rates of all candidates, measured or not: the capacity model, corrected by what was measured.

What the model misses is taken for a Gaussian process over the settings' values, in logarithms of
rates: near a measured candidate the correction is known, far from all it is none, and says how sure
it is. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_LENGTHS: Final = (0.3, 0.6, 1.0)
_SCALES: Final = (0.2, 0.4, 0.8)
# Each setting is taken to matter as much until measured rates say otherwise.
_ROUNDS: Final = 2


@dataclass(frozen=True)
class Rates:
    """Of each candidate asked for: mean and standard deviation of the rate's logarithm."""

    mean: Floats
    deviation: Floats

    def expected_gains(self, best_log: float) -> Floats:
        """By how much each would exceed the best, on average over what it may be; of logarithms."""
        deviation = np.maximum(self.deviation, 1e-9)
        above = (self.mean - best_log) / deviation
        gains: Floats = deviation * (above * norm.cdf(above) + norm.pdf(above))
        return gains


@dataclass(frozen=True)
class Correction:
    """A Gaussian process, fitted."""

    places: Floats
    factor: tuple[Floats, bool]
    weights: Floats
    lengths: Floats
    scale: float

    def rates(self, places: Floats, logs: Floats) -> Rates:
        """places: of candidates; logs: the model's predictions for them."""
        cross = _kernel(places, self.places, self.lengths, self.scale)
        mean = logs + cross @ self.weights
        explained = np.einsum("ij,ji->i", cross, cho_solve(self.factor, cross.T))
        return Rates(mean, np.sqrt(np.maximum(self.scale**2 - explained, 1e-8)))

    def draws(
        self, places: Floats, logs: Floats, number: int, random: np.random.Generator
    ) -> Floats:
        """Possible rates' logarithms, all candidates' together: a row for each draw."""
        cross = _kernel(places, self.places, self.lengths, self.scale)
        mean = logs + cross @ self.weights
        covariance = _kernel(places, places, self.lengths, self.scale)
        covariance -= cross @ cho_solve(self.factor, cross.T)
        root = np.linalg.cholesky(covariance + 1e-6 * np.eye(len(places)))
        found: Floats = mean + random.standard_normal((number, len(places))) @ root.T
        return found


def fit_correction(places: Floats, misses: Floats, deviations: Floats) -> Correction:
    """misses: logarithms of measured rates, less those of predicted ones; deviations: of each.

    How far each setting's values are alike is chosen by the likelihood of what was measured.
    """
    settings = places.shape[1]
    lengths, scale = np.full(settings, _LENGTHS[-1]), _SCALES[0]
    best = -np.inf
    for _ in range(_ROUNDS):
        # All together first, then each setting for itself.
        for index in (None, *range(settings)):
            for length in _LENGTHS:
                for each in _SCALES:
                    tried = lengths.copy()
                    tried[slice(None) if index is None else index] = length
                    found = _likelihood(places, misses, deviations, tried, each)
                    if found > best:
                        best, lengths, scale = found, tried, each
    factor, weights = _solve_gaussian_process(places, misses, deviations, lengths, scale)
    return Correction(places, factor, weights, lengths, scale)


def _kernel(a: Floats, b: Floats, lengths: Floats, scale: float) -> Floats:
    squares = (((a[:, None, :] - b[None, :, :]) / lengths) ** 2).sum(axis=2)
    # Matern 5/2: rates bend, and have no derivatives of all orders.
    distance = np.sqrt(5 * squares)
    found: Floats = scale**2 * (1 + distance + distance**2 / 3) * np.exp(-distance)
    return found


def _solve_gaussian_process(
    places: Floats, misses: Floats, deviations: Floats, lengths: Floats, scale: float
) -> tuple[tuple[Floats, bool], Floats]:
    covariance = _kernel(places, places, lengths, scale) + np.diag(deviations**2 + 1e-8)
    factor = cho_factor(covariance, lower=True)
    return factor, cho_solve(factor, misses)


def _likelihood(
    places: Floats, misses: Floats, deviations: Floats, lengths: Floats, scale: float
) -> float:
    factor, weights = _solve_gaussian_process(places, misses, deviations, lengths, scale)
    # A weak preference for long lengths: few measurements tell little of a setting.
    preference = 0.1 * float(np.log(lengths).sum())
    return float(-0.5 * misses @ weights - np.log(np.diag(factor[0])).sum()) + preference
