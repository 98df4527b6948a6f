"""Straggler-resilient personalized federated learning in JAX, on simulated wall-clock time."""

from . import algorithms, clocks, data, linear, methods, models, participation, plots, theory
from .base import (
    ClientOutput,
    ClientTimes,
    Clock,
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
from .engine.judge import evaluate
from .engine.simulate import simulate, simulate_seeds
from .history import History

__version__ = "0.1.0"

__all__ = [
    "ClientOutput",
    "ClientTimes",
    "Clock",
    "Cohort",
    "Examples",
    "FederatedAlgorithm",
    "History",
    "Method",
    "ParticipationPolicy",
    "Phase",
    "RoundContext",
    "RoundInfo",
    "Uncharged",
    "algorithms",
    "clocks",
    "data",
    "evaluate",
    "linear",
    "methods",
    "models",
    "named_key",
    "participation",
    "plots",
    "simulate",
    "simulate_seeds",
    "theory",
    "use_all_cores",
]
