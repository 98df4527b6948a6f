"""Rounds and times of FLANP and FedGATE.

From Reisizadeh et al., "Straggler-resilient federated learning".
"""

from __future__ import annotations

import math

import numpy as np

from fedjax_srp.participation.cohorts import stage_sizes
from fedjax_srp.parts.checks import check_numbers
from fedjax_srp.parts.part import Count
from fedjax_srp.theory._formula import NonNegative, Positive, formula


@formula("printed bound")
def flanp_alpha(n: Count, mu: Positive, smoothness: Positive, c: Positive) -> float:
    """Return the largest alpha_n of FLANP's Theorem 1, as printed.

    For small L its proof allows only less (eq. 22).

    The proof's own list, eq. 24, has sqrt(kappa L) in two bounds, the first and the fourth, where the theorem has
    sqrt(kappa) L: for L < 1 that is less.

    Args:
        n: participants of the stage.
        mu: strong convexity.
        smoothness: L, Lipschitz constant of the gradients; kappa = L / mu.
        c: of the statistical accuracy V_ns = c / (n s).
    """
    kappa = smoothness / mu
    root = math.sqrt(n)
    return min(
        1 / (12 * math.sqrt(3) * kappa**1.5 * smoothness),
        root
        / (12 * math.sqrt(2) * (3 * kappa**2 + 2) * (2 * mu + 1) * kappa * smoothness),
        (root / (96 * kappa**2 * smoothness**2)) ** (1 / 3),
        root / (math.sqrt(15 * c * kappa) * smoothness),
        root / (math.sqrt(30) * smoothness),
    )


@formula("printed bound")
def flanp_step_sizes(
    n: Count, mu: Positive, smoothness: Positive, c: Positive, local_steps: Positive
) -> tuple[float, float]:
    """FLANP, Theorem 1: eta_n = alpha_n / (tau sqrt n) and gamma_n = sqrt n / (2 alpha_n L).

    alpha_n is the largest one. For every n, a round moves the model by eta gamma tau = 1 / (2L)
    times the mean direction.
    """
    alpha = flanp_alpha(n, mu, smoothness, c)
    root = math.sqrt(n)
    return alpha / (local_steps * root), root / (2 * alpha * smoothness)


@formula("printed bound")
def flanp_local_steps(samples: Positive, noise: NonNegative, c: Positive) -> float:
    """FLANP, Theorem 1: tau = 1.5 s sigma^2 / c local steps, not rounded.

    sigma^2 is the variance of their gradients.
    """
    return 1.5 * samples * noise / c


@formula("printed bound")
def flanp_stage_rounds(kappa: Positive) -> float:
    """FLANP, Theorem 1: R = 12 kappa log 6 rounds suffice for a stage after the first one."""
    return 12 * kappa * math.log(6)


@formula("printed bound")
def flanp_warm_gap(n: Count, before: Count, samples: Positive, c: Positive) -> float:
    """FLANP, Proposition 1: L_n(w) - L_n(w_n*) <= 2 (n-m)/n (V_(n-m)s + V_ms) + V_ms.

    It holds for the last w of the stage of m.
    `before` is m, the participants of the previous stage, `samples` is s, per client, and V_ns = c
    / (n s).
    """
    if before >= n:
        raise ValueError(f"before={before} must be below n={n}: stages grow")
    added = n - before
    of_added = c / (added * samples)
    of_before = c / (before * samples)
    return 2 * added / n * (of_added + of_before) + of_before


@formula("printed bound")
def flanp_time(
    times: np.ndarray,
    initial: Count,
    kappa: Positive,
    samples: Positive,
    noise: NonNegative,
    c: Positive,
) -> float:
    """FLANP, Proposition 2 and eq. 34: R tau sum over n = n0, 2 n0, ..., N of T_(n).

    R and tau are those of `flanp_stage_rounds` and `flanp_local_steps`.

    Args:
        times: (N,) T_i, or the expectations of T_(i), in any order.
        initial: n0.
        kappa: condition number L / mu.
        samples: s, per client.
        noise: sigma^2, variance of the stochastic gradients.
        c: of the statistical accuracy V_ns = c / (n s).
    """
    ordered = _ascending(times)
    if initial > len(ordered):
        raise ValueError(
            f"initial={initial} must be at most {len(ordered)}, the number of times"
        )
    stage_times = [float(ordered[n - 1]) for n in stage_sizes(initial, len(times))]
    return (
        flanp_stage_rounds(kappa)
        * flanp_local_steps(samples, noise, c)
        * sum(stage_times)
    )


@formula("printed bound")
def fedgate_time(
    times: np.ndarray,
    kappa: Positive,
    samples: Positive,
    noise: NonNegative,
    c: Positive,
    initial_gap: NonNegative,
) -> float:
    """FLANP, Proposition 3 and eq. 35: R tau T_(N).

    R = 6 kappa log(5 Delta0 N s / c), and tau = 1.25 s sigma^2 / c. `times` are as in `flanp_time`;
    `initial_gap` is Delta0, above c / (5 N s).
    """
    gap = _log_gap(initial_gap, len(times), samples, c)
    return 6 * kappa * gap * (1.25 * samples * noise / c) * float(_ascending(times)[-1])


@formula("printed bound")
def flanp_ratio(
    num_clients: Count,
    samples: Positive,
    c: Positive,
    initial_gap: NonNegative,
    initial: Count = 1,
) -> float:
    """Return E[T_FLANP] / E[T_FedGATE] for exponential times.

    FLANP, eq. 36 and the equality of eq. 45. It compares numbers of rounds that suffice, not of
    rounds that are necessary.
    """
    # E[T_(i)] = H_N - H_(N-i)
    times = np.cumsum(1 / np.arange(num_clients, 0, -1.0))
    flanp = flanp_time(times, initial, 1, samples, 1, c)
    return flanp / fedgate_time(times, 1, samples, 1, c, initial_gap)


@formula("printed bound")
def flanp_ratio_bound(
    num_clients: Count, samples: Positive, c: Positive, initial_gap: NonNegative
) -> float:
    """FLANP, Theorem 2, eq. 45: ratio <= (12 log 6 / (5 log(5 Delta0 N s / c))) (2 + 1/N).

    Proven for n0 = 1 and N a power of 2. For other N it may fail: at N = 33 the ratio is 1.002
    times the "bound".
    """
    gap = _log_gap(initial_gap, num_clients, samples, c)
    return 12 * math.log(6) / (5 * gap) * (2 + 1 / num_clients)


def _ascending(times: np.ndarray) -> np.ndarray:
    check_numbers("times", times, "give the expected time of every client")
    return np.sort(times)


def _log_gap(initial_gap: float, num_clients: int, samples: float, c: float) -> float:
    """Return log(5 Delta0 N s / c)."""
    final_gap = c / (5 * num_clients * samples)
    if initial_gap <= final_gap:
        raise ValueError(
            f"initial_gap={initial_gap} must be above c / (5 N s) = {final_gap:.6g}, "
            "the gap at the end of training"
        )
    return math.log(initial_gap / final_gap)
