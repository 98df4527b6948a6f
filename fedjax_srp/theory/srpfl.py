"""Rounds and times of SRPFL and FedRep.

From Tziotis et al., "Straggler-resilient personalized federated learning".
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_srp.participation.cohorts import stage_sizes
from fedjax_srp.parts.checks import as_annotated, check_numbers
from fedjax_srp.parts.part import AtLeast, Count
from fedjax_srp.theory._formula import Chat, Contraction, NonNegative, Positive, formula
from fedjax_srp.theory.times import order_statistic_mean

# The first cohort


@formula("printed bound")
def initial_clients(
    dim: Count, num_clients: Annotated[int, AtLeast(2)], sigma_max: Positive
) -> int:
    """Return n0, the fewest clients of a round (appendix A): 2 d / (log(N) sigma_max), rounded up; log is natural.

    With it d / n0 is at most log(N) sigma_max / 2, so that the max(log N, d / n0) samples a client and round of Theorem
    4.5 are O(log N), whatever d. The paper does not state the base of the logarithm: log2 would give a smaller n0.

    Args:
        dim: d, the dimension of the inputs.
        num_clients: N, from which the fastest are chosen.
        sigma_max: as in `max_step_size`, in units of a head. Its value for all N heads together is smaller than the
            paper's, and gives an n0 that is at least the paper's.

    Returns:
        A number of clients, `initial` of the other functions and of `participation.Doubling`.

    Raises:
        ValueError: n0 is above N, so that the analysis covers no round at all.

    Example:
        >>> from fedjax_srp import theory
        >>> [theory.initial_clients(100, n, sigma_max=1.1) for n in (256, 1024, 4096, 32768)]
        [33, 27, 22, 18]
    """
    initial = math.ceil(2 * dim / (math.log(num_clients) * sigma_max))
    if initial > num_clients:
        raise ValueError(
            f"num_clients={num_clients} must be at least n0 = 2 d / (log(N) sigma_max) = {initial}: give more clients "
            "or a smaller dim"
        )
    return initial


# Contraction


@formula("valid bound")
def max_step_size(sigma_max: Positive) -> float:
    """Return the largest eta of Theorem 4.5: 1 / (8 sigma_max^2).

    Eq. 8: sigma_max is the largest singular value of W*_I / sqrt(n) over ALL sets I of n clients,
    n0 <= n <= N. The value for all N heads together is smaller, and gives a larger step than the
    theorem allows.
    """
    return 1 / (8 * sigma_max**2)


@formula("valid bound")
def contraction_rate(
    step_size: Positive, initial_distance: NonNegative, sigma_min: Positive
) -> float:
    """Return the a of Theorem 4.5: eta E0 sigma_min^2 / 2 with E0 = 1 - dist(B0, B*)^2.

    Eq. 8: sigma_min is the smallest singular value of W*_I / sqrt(n) over ALL sets I of n clients,
    n0 <= n <= N. The value for all N heads together is larger, and gives an a that is too large.
    """
    a = step_size * (1 - initial_distance**2) * sigma_min**2 / 2
    return as_annotated("a", a, Contraction)


@formula("exact recursion")
def contraction(distance: NonNegative, a: Contraction, ratio: Positive) -> float:
    """Theorem 4.5, eq. 9, as an equality: dist+ = dist sqrt(1-a) + a / sqrt(ratio (1-a)).

    ratio = n / n0.
    """
    return distance * math.sqrt(1 - a) + a / math.sqrt(ratio * (1 - a))


@formula("exact recursion")
def fixed_point(a: Contraction, ratio: Positive) -> float:
    """Return the limit of eq. 9 for n = ratio * n0 participants (eq. 10).

    It is a / (sqrt(ratio (1-a)) (1 - sqrt(1-a))). With s = sqrt(1-a) it is (1+s) / (s sqrt(ratio)),
    above 2 / sqrt(ratio): a trivial bound up to ratio = 4.
    """
    s = math.sqrt(1 - a)
    return (1 + s) / (s * math.sqrt(ratio))


@formula("exact recursion")
def distances(
    a: Contraction, ratios: np.ndarray, initial_distance: NonNegative = 1.0
) -> np.ndarray:
    """Iterate eq. 9 over rounds with n/n0 = ratios[t]; return the (R,) distances."""
    check_numbers("ratios", ratios, "give n/n0 of every round")
    distance = initial_distance
    after_rounds = []
    for ratio in ratios:
        distance = contraction(distance, a, float(ratio))
        after_rounds.append(distance)
    return np.array(after_rounds, float)


@formula("exact recursion")
def target_distance(
    a: Contraction, num_clients: Count, initial: Count, chat: Chat
) -> float:
    """Eq. 11: eps = chat times the fixed point with all N clients, 1 < chat < sqrt(2)."""
    if initial > num_clients:
        raise ValueError(
            f"initial={initial} must be at most num_clients={num_clients}: stages grow to all"
        )
    return chat * fixed_point(a, num_clients / initial)


@formula("exact recursion")
def switching_distances(
    a: Contraction,
    num_clients: Count,
    initial: Count,
    communication: NonNegative = 0.0,
    rate: Positive = 1.0,
) -> np.ndarray:
    """Return X_r, the largest distance at which n_r participants are best per unit of time.

    Lemma B.1, eq. 196 to 198: X_0 = infinity, and at X_(r+1) stages r and r + 1 progress equally
    fast: X_(r+1) (1-s) = (A_r (E_(r+1) + C) - A_(r+1) (E_r + C)) / (E_(r+1) - E_r), A_r = a /
    sqrt((n_r/n0)(1-a)). If n doubles, this is A_r (1 + (E_r + C)(1 - 1/sqrt 2) / (E_(r+1) - E_r)),
    eq. 198 (the printed 194 has a wrong index).

    Returns:
        (number of stages,) distances.
    """
    s = math.sqrt(1 - a)
    sizes = stage_sizes(initial, num_clients)
    noise = [a / (math.sqrt(n / initial) * s) for n in sizes]
    cost = [order_statistic_mean(n, num_clients, rate) + communication for n in sizes]
    crossings = [
        (noise[r] * cost[r + 1] - noise[r + 1] * cost[r])
        / ((1 - s) * (cost[r + 1] - cost[r]))
        for r in range(len(sizes) - 1)
    ]
    return np.array([math.inf, *crossings])


@formula("exact recursion")
def rounds_between(
    start: NonNegative, end: NonNegative, a: Contraction, ratio: Positive
) -> int:
    """Return the smallest t with dist_t <= end, dist_t = x + (start - x) sqrt(1-a)^t (eq. 199)."""
    if start <= end:
        return 0
    x = fixed_point(a, ratio)
    if end <= x:
        reason = f"with n/n0={ratio:g} distances stay above {x:.6g}; give more"
        raise ValueError(f"end={end:.6g} cannot be reached: {reason}")
    return math.ceil(2 * math.log((start - x) / (end - x)) / -math.log1p(-a) - 1e-9)


@formula("exact recursion")
def stage_rounds(
    a: Contraction, num_clients: Count, initial: Count, rate: Positive = 1.0
) -> np.ndarray:
    """Eq. 206: rounds t_r from X_r to X_(r+1), not rounded up; nan in the first stage and the last.

    2 log(sqrt 2 (E_(r+1) - E_r) / (E_r - E_(r-1))) / log(1/(1-a)): the communication cost cancels.
    `num_clients` is `initial` times a power of 2. For the first stage that gets rounds, and for the
    last, see `schedule`.
    """
    sizes = stage_sizes(initial, num_clients)
    if sizes[-1] != initial * 2 ** (len(sizes) - 1):
        raise ValueError(
            f"num_clients={num_clients} must be initial={initial} times a power of 2; use schedule"
        )
    steps = np.diff([order_statistic_mean(n, num_clients, rate) for n in sizes])
    inner = 2 * np.log(math.sqrt(2) * steps[1:] / steps[:-1]) / -math.log1p(-a)
    return np.array([math.nan, *inner, math.nan][: len(sizes)])


class Schedule(NamedTuple):
    """A plan for SRPFL, `participation.Doubling(initial, plan.rounds_per_stage)`."""

    rounds_per_stage: list[int]  # the last stage ends at the target
    cohort_sizes: list[int]  # n_r
    stage_times: list[float]  # E_r + C, expected time of a round
    target: float  # eps

    @property
    def num_rounds(self) -> int:
        """Number of rounds in all stages."""
        return sum(self.rounds_per_stage)

    @property
    def time(self) -> float:
        """E[T_SRPFL] = sum_r t_r (E_r + C), in time units (section 4)."""
        return sum(
            t * cost
            for t, cost in zip(self.rounds_per_stage, self.stage_times, strict=True)
        )


@formula("exact recursion")
def schedule(
    a: Contraction,
    num_clients: Count,
    initial: Count,
    chat: Chat,
    communication: NonNegative = 0.0,
    rate: Positive = 1.0,
    initial_distance: NonNegative = 1.0,
) -> Schedule:
    """Compute the rounds of every stage by iterating eq. 9.

    Stage r ends at distance X_(r+1), the last one at eps. A stage whose X_(r+1) is at least its
    initial distance gets no rounds.

    Args:
        a: as in `contraction_rate`.
        num_clients: N.
        initial: n0.
        chat: see `target_distance`.
        communication: C, in time units.
        rate: lambda of the clients' exponential times.
        initial_distance: dist(B0, B*).
    """
    eps = target_distance(a, num_clients, initial, chat)
    sizes = stage_sizes(initial, num_clients)
    ends = [*switching_distances(a, num_clients, initial, communication, rate)[1:], eps]
    distance = initial_distance
    rounds_per_stage = []
    stage_times = []
    for n, end in zip(sizes, ends, strict=True):
        rounds = rounds_between(distance, max(float(end), eps), a, n / initial)
        rounds_per_stage.append(rounds)
        stage_times.append(order_statistic_mean(n, num_clients, rate) + communication)
        if rounds:
            x = fixed_point(a, n / initial)
            distance = x + (distance - x) * (1 - a) ** (rounds / 2)
    return Schedule(rounds_per_stage, sizes, stage_times, eps)


@formula("exact recursion")
def fedrep_rounds(
    a: Contraction,
    num_clients: Count,
    initial: Count,
    chat: Chat,
    initial_distance: NonNegative = 1.0,
) -> int:
    """Return the number of rounds of FedRep, with all N clients, to eps (eq. 244).

    From distance 1 it is ceil(2 log((1-x) / ((chat-1) x)) / log(1/(1-a))) with the fixed point x if
    chat x < 1, else 0; `initial` only scales the noise.
    """
    eps = target_distance(a, num_clients, initial, chat)
    return rounds_between(initial_distance, eps, a, num_clients / initial)


@formula("exact recursion")
def fedrep_time(
    a: Contraction,
    num_clients: Count,
    initial: Count,
    chat: Chat,
    communication: NonNegative = 0.0,
    rate: Positive = 1.0,
    initial_distance: NonNegative = 1.0,
) -> float:
    """E[T_FedRep] = rounds * (H_N / lambda + C) (section 4.1)."""
    rounds = fedrep_rounds(a, num_clients, initial, chat, initial_distance)
    return rounds * (order_statistic_mean(num_clients, num_clients, rate) + communication)


# Bounds as printed


@formula("printed bound")
def srpfl_time_bound(
    a: Contraction,
    num_clients: Count,
    chat: Chat,
    c: NonNegative = 0.0,
    rate: Positive = 1.0,
) -> float:
    """Lemma B.2, eq. 209: E[T_SRPFL] <= log N (6(c+1) + 4 log(1/(chat-1))) / log(1/(1-a)) / lambda.

    Here C = c / lambda. The derivation skips stage 0, misplaces (c+1) in eq. 221 and drops 1 + c in
    eq. 235. The bound holds over wide ranges, and fails if c is large and chat close to 1.

    Example:
        >>> from fedjax_srp import theory
        >>> round(theory.srpfl_time_bound(0.02, 16, 1.0001, c=100)), round(
        ...     theory.schedule(0.02, 16, 1, 1.0001, communication=100).time
        ... )
        (88223, 94180)
    """
    gap = math.log(1 / (chat - 1))
    return math.log(num_clients) * (6 * (c + 1) + 4 * gap) / -math.log1p(-a) / rate


@formula("printed bound")
def fedrep_rounds_bound(a: Contraction, num_clients: Count, chat: Chat) -> float:
    """Eq. 245: rounds of FedRep, (2 log(1/(chat-1)) + log N) / log(1/(1-a)).

    It is printed as a lower bound, and is none.
    """
    return (2 * math.log(1 / (chat - 1)) + math.log(num_clients)) / -math.log1p(-a)


@formula("printed bound")
def fedrep_time_bound(
    a: Contraction, num_clients: Count, chat: Chat, rate: Positive = 1.0
) -> float:
    """Lemma B.3, eq. 240: E[T_FedRep] >= log N (log N + 2 log(1/(chat-1))) / log(1/(1-a)) / lambda.

    It is NOT a lower bound.

    Example:
        >>> from fedjax_srp import theory
        >>> round(theory.fedrep_time_bound(0.02, 256, 1.1))
        2786
        >>> round(theory.fedrep_time(0.02, 256, 1, 1.1))
        2578
    """
    return math.log(num_clients) * fedrep_rounds_bound(a, num_clients, chat) / rate


@formula("printed bound")
def speedup_bound(num_clients: Count, chat: Chat, c: NonNegative = 0.0) -> float:
    """Theorem 4.6, eq. 248: E[T_SRPFL] / E[T_FedRep] <= (6(c+1) + 4 g) / (log N + 2 g).

    g = log(1 / (chat - 1)).
    """
    gap = math.log(1 / (chat - 1))
    return (6 * (c + 1) + 4 * gap) / (math.log(num_clients) + 2 * gap)
