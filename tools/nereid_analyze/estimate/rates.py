"""Estimates the rates of all candidates: the capacity model, corrected by measurements.

A Gaussian process models the errors of the capacity model in log rates. Far from all measured
candidates the correction is zero with a large uncertainty.
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
_ROUNDS: Final = 2


@dataclass(frozen=True)
class Rates:
    """Estimated rates: mean and standard deviation of the logarithm of each candidate's rate."""

    mean: Floats
    deviation: Floats

    def expected_gains(self, best_log: float) -> Floats:
        """Return each candidate's expected improvement over the best, in logarithms of rates."""
        deviation = np.maximum(self.deviation, 1e-9)
        above = (self.mean - best_log) / deviation
        gains: Floats = deviation * (above * norm.cdf(above) + norm.pdf(above))
        return gains


@dataclass(frozen=True)
class Correction:
    """The fitted correction, a Gaussian process."""

    places: Floats
    factor: tuple[Floats, bool]
    weights: Floats
    lengths: Floats
    scale: float

    def rates(self, places: Floats, logs: Floats) -> Rates:
        """Return the rates of candidates at `places`, given the model's predictions `logs`."""
        cross = _kernel(places, self.places, self.lengths, self.scale)
        mean = logs + cross @ self.weights
        explained = np.einsum("ij,ji->i", cross, cho_solve(self.factor, cross.T))
        return Rates(mean, np.sqrt(np.maximum(self.scale**2 - explained, 1e-8)))

    def draws(
        self, places: Floats, logs: Floats, number: int, random: np.random.Generator
    ) -> Floats:
        """Draw random samples of all candidates' rates (logarithms): a row for each draw."""
        cross = _kernel(places, self.places, self.lengths, self.scale)
        mean = logs + cross @ self.weights
        covariance = _kernel(places, places, self.lengths, self.scale)
        covariance -= cross @ cho_solve(self.factor, cross.T)
        root = np.linalg.cholesky(covariance + 1e-6 * np.eye(len(places)))
        logs_drawn: Floats = mean + random.standard_normal((number, len(places))) @ root.T
        return logs_drawn


def fit_correction(places: Floats, misses: Floats, deviations: Floats) -> Correction:
    """Fit the correction; `misses` are log measured rates minus log predicted rates."""
    settings = places.shape[1]
    lengths, scale = np.full(settings, _LENGTHS[-1]), _SCALES[0]
    best = -np.inf
    for _ in range(_ROUNDS):
        # First fit a common length scale for all settings, then one for each setting.
        for index in (None, *range(settings)):
            for length in _LENGTHS:
                for spread in _SCALES:
                    tried = lengths.copy()
                    tried[slice(None) if index is None else index] = length
                    likelihood = _likelihood(places, misses, deviations, tried, spread)
                    if likelihood > best:
                        best, lengths, scale = likelihood, tried, spread
    factor, weights = _solve_gaussian_process(places, misses, deviations, lengths, scale)
    return Correction(places, factor, weights, lengths, scale)


def _kernel(a: Floats, b: Floats, lengths: Floats, scale: float) -> Floats:
    squares = (((a[:, None, :] - b[None, :, :]) / lengths) ** 2).sum(axis=2)
    # Matern 5/2, because rates have bends and are not infinitely smooth.
    distance = np.sqrt(5 * squares)
    covariance: Floats = scale**2 * (1 + distance + distance**2 / 3) * np.exp(-distance)
    return covariance


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
    # Prefer long length scales, because few measurements say little about a setting.
    preference = 0.1 * float(np.log(lengths).sum())
    return float(-0.5 * misses @ weights - np.log(np.diag(factor[0])).sum()) + preference
