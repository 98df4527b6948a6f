"""Straggler-resilient personalized federated learning in JAX, on simulated wall-clock time."""

from . import algorithms, clocks, data, methods, models, participation, plots
from .base import (
    Clock,
    ClientOutput,
    ClientTimes,
    Cohort,
    Examples,
    FederatedAlgorithm,
    Method,
    ParticipationPolicy,
    Phase,
    RoundContext,
    RoundInfo,
    Uncharged,
    named_key,
)
from .cores import use_all_cores
from .engine.simulate import simulate, simulate_seeds
from .history import History

__version__ = "0.1.0"
