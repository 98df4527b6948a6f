"""Straggler-resilient personalized federated learning in JAX, on simulated wall-clock time."""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_srp import clocks, data, linear, participation, theory, watch
from fedjax_srp._version import __version__ as __version__
from fedjax_srp.backend import use_cuda_graphs
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
    TrainingLoss,
    Uncharged,
    evaluation,
    named_key,
    nothing,
)
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.engine.evaluate import evaluate
from fedjax_srp.engine.simulate import simulate, simulate_seeds
from fedjax_srp.engine.simulation import Simulation
from fedjax_srp.history import History
from fedjax_srp.parts import Above, AtLeast, AtMost, Below, Static, part

if TYPE_CHECKING:
    from fedjax_srp import algorithms, methods, models
    from fedjax_srp.adaptation import adapt
    from fedjax_srp.algorithms.local import Training
    from fedjax_srp.algorithms.optimizers import SGD, optimizer
    from fedjax_srp.grids.grid import grid
    from fedjax_srp.report import plots

__all__ = [
    "SGD",
    "Above",
    "AtLeast",
    "AtMost",
    "Below",
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
    "Simulation",
    "Static",
    "Training",
    "TrainingLoss",
    "Uncharged",
    "adapt",
    "algorithms",
    "clocks",
    "data",
    "evaluate",
    "evaluation",
    "grid",
    "linear",
    "methods",
    "models",
    "named_key",
    "nothing",
    "optimizer",
    "part",
    "participation",
    "plots",
    "simulate",
    "simulate_seeds",
    "theory",
    "use_all_cores",
    "use_cuda_graphs",
    "watch",
]

# Imported when they are first asked for, with flax and optax, which take half as long as JAX.
_LATER = {
    "algorithms": "fedjax_srp.algorithms",
    "methods": "fedjax_srp.methods",
    "models": "fedjax_srp.models",
    "plots": "fedjax_srp.report.plots",
}
_LATER_FUNCTIONS = {
    "SGD": "fedjax_srp.algorithms.optimizers",
    "Training": "fedjax_srp.algorithms.local",
    "adapt": "fedjax_srp.adaptation",
    "grid": "fedjax_srp.grids.grid",
    "optimizer": "fedjax_srp.algorithms.optimizers",
}


def __getattr__(name: str) -> Any:
    if name in _LATER_FUNCTIONS:
        globals()[name] = getattr(importlib.import_module(_LATER_FUNCTIONS[name]), name)
    elif name in _LATER:
        globals()[name] = importlib.import_module(_LATER[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
