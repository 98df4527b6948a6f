"""Expected times of the fastest clients."""

from __future__ import annotations

import math

import numpy as np

from fedjax_srp.parts.part import Count
from fedjax_srp.theory._formula import Positive, formula


@formula("exact")
def harmonic(n: Count) -> float:
    """H_n = 1 + 1/2 + ... + 1/n (FLANP, appendix D, below eq. 40)."""
    if n < 256:
        return float(np.sum(1 / np.arange(1, n + 1)))
    return math.log(n) + float(np.euler_gamma) + _above_log(n)


def _above_log(n: int) -> float:
    """H_n - log n - gamma, for large n."""
    return 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)


@formula("exact")
def order_statistic_mean(i: Count, n: Count, rate: Positive = 1.0) -> float:
    """E[T_(i)] = (H_n - H_(n-i)) / rate, the i-th fastest of n times Exp(rate) (FLANP, eq. 40)."""
    if i > n:
        raise ValueError(f"i={i} must be at most n={n}, the number of clients")
    if n - i >= 256:  # not as a difference of harmonic numbers, which are nearly equal
        return (-math.log1p(-i / n) + _above_log(n) - _above_log(n - i)) / rate
    slower = harmonic(n - i) if i < n else 0.0
    return (harmonic(n) - slower) / rate
