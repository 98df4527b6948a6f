"""The papers' theory of rounds and simulated time, as functions of NumPy floats and arrays.

Every function cites its equation, and `KIND` classifies its value:

* "exact": an identity under the stated model of times;
* "exact recursion": exact if inequality (9) holds as an equality in every round;
* "valid bound": proven and checked;
* "printed bound": as printed in the paper. It may fail; `fedrep_time_bound` and `flanp_ratio_bound`
  do.

Equation numbers are SRPFL's unless FLANP is named (Tziotis et al., "Straggler-resilient
personalized federated learning"; Reisizadeh et al., "Straggler-resilient federated learning").
Training starts with n0 participants and ends with N: stage r has n_r = min(N, n0 2^r). E_r =
E[T_(n_r)] is the expected time of the n_r-th fastest of N clients; C is the communication cost of a
round, in time units. log is the natural logarithm.

    >>> from fedjax_srp import theory
    >>> plan = theory.schedule(a=0.02, num_clients=256, initial=1, chat=1.1)
    >>> plan.rounds_per_stage
    [0, 0, 0, 36, 108, 114, 130, 292, 153]
    >>> srpfl, fedrep = plan.time, theory.fedrep_time(0.02, 256, 1, 1.1)
    >>> round(srpfl), round(fedrep)
    (1199, 2578)
"""

from __future__ import annotations

from fedjax_srp.theory._formula import KIND
from fedjax_srp.theory.flanp import (
    fedgate_time,
    flanp_alpha,
    flanp_local_steps,
    flanp_ratio,
    flanp_ratio_bound,
    flanp_stage_rounds,
    flanp_step_sizes,
    flanp_time,
    flanp_warm_gap,
)
from fedjax_srp.theory.srpfl import (
    Schedule,
    contraction,
    contraction_rate,
    distances,
    fedrep_rounds,
    fedrep_rounds_bound,
    fedrep_time,
    fedrep_time_bound,
    fixed_point,
    initial_clients,
    max_step_size,
    rounds_between,
    schedule,
    speedup_bound,
    srpfl_time_bound,
    stage_rounds,
    switching_distances,
    target_distance,
)
from fedjax_srp.theory.times import harmonic, order_statistic_mean

__all__ = [
    "KIND",
    "Schedule",
    "contraction",
    "contraction_rate",
    "distances",
    "fedgate_time",
    "fedrep_rounds",
    "fedrep_rounds_bound",
    "fedrep_time",
    "fedrep_time_bound",
    "fixed_point",
    "flanp_alpha",
    "flanp_local_steps",
    "flanp_ratio",
    "flanp_ratio_bound",
    "flanp_stage_rounds",
    "flanp_step_sizes",
    "flanp_time",
    "flanp_warm_gap",
    "harmonic",
    "initial_clients",
    "max_step_size",
    "order_statistic_mean",
    "rounds_between",
    "schedule",
    "speedup_bound",
    "srpfl_time_bound",
    "stage_rounds",
    "switching_distances",
    "target_distance",
]
