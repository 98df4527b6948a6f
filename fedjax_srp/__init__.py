"""Straggler-resilient personalized federated learning in JAX, on simulated wall-clock time."""

from fedjax_srp import algorithms, clocks, data, linear, methods, models, participation, theory
from fedjax_srp._version import __version__ as __version__
from fedjax_srp.base import (
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
    nothing,
)
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.engine.evaluate import evaluate
from fedjax_srp.engine.simulate import simulate, simulate_seeds
from fedjax_srp.history import History
from fedjax_srp.parts import interned, tunable
from fedjax_srp.report import plots

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
    "interned",
    "linear",
    "methods",
    "models",
    "named_key",
    "nothing",
    "participation",
    "plots",
    "simulate",
    "simulate_seeds",
    "theory",
    "tunable",
    "use_all_cores",
]
