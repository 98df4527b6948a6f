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
    Uncharged,
    named_key,
    nothing,
)
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.engine.evaluate import evaluate
from fedjax_srp.engine.simulate import simulate, simulate_seeds
from fedjax_srp.history import History
from fedjax_srp.parts import interned, tunable
from fedjax_srp.record import recorded

if TYPE_CHECKING:
    from fedjax_srp import algorithms, methods, models
    from fedjax_srp.adaptation import adapt
    from fedjax_srp.grids.grid import grid
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
    "adapt",
    "algorithms",
    "clocks",
    "data",
    "evaluate",
    "grid",
    "interned",
    "linear",
    "methods",
    "models",
    "named_key",
    "nothing",
    "participation",
    "plots",
    "recorded",
    "simulate",
    "simulate_seeds",
    "theory",
    "tunable",
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
_LATER_FUNCTIONS = {"adapt": "fedjax_srp.adaptation", "grid": "fedjax_srp.grids.grid"}


def __getattr__(name: str) -> Any:
    if name in _LATER_FUNCTIONS:
        globals()[name] = getattr(importlib.import_module(_LATER_FUNCTIONS[name]), name)
    elif name in _LATER:
        globals()[name] = importlib.import_module(_LATER[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
