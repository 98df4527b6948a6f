"""Straggler-resilient personalized federated learning in JAX, on simulated wall-clock time."""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_srp._version import __version__ as __version__

if TYPE_CHECKING:
    from fedjax_srp import (
        algorithms,
        clocks,
        data,
        linear,
        methods,
        models,
        participation,
        theory,
    )
    from fedjax_srp.algorithms.optimizers import SGD, optimizer
    from fedjax_srp.algorithms.training import Training
    from fedjax_srp.base import (
        Charges,
        ClientOutput,
        ClientTimes,
        Clock,
        Cohort,
        Examples,
        Exchange,
        FederatedAlgorithm,
        Method,
        ParticipationPolicy,
        Phase,
        RoundContext,
        RoundInfo,
        TrainingLoss,
        Uncharged,
        WorkCosts,
        evaluation,
        named_key,
        nothing,
        unchanged,
    )
    from fedjax_srp.driver.adapt import adapt
    from fedjax_srp.driver.debug import debug_client
    from fedjax_srp.driver.evaluate import evaluate
    from fedjax_srp.driver.memory import estimate_memory
    from fedjax_srp.driver.personalize import personalize
    from fedjax_srp.driver.retime import retime
    from fedjax_srp.driver.simulate import simulate, simulate_seeds
    from fedjax_srp.driver.simulation import Simulation
    from fedjax_srp.lab.grids.grid import grid
    from fedjax_srp.lab.grids.measure import measure
    from fedjax_srp.lab.report import plots
    from fedjax_srp.parts.part import Above, AtLeast, AtMost, Below, Static, part
    from fedjax_srp.results import callbacks as watch
    from fedjax_srp.results.history import History
    from fedjax_srp.xla.cores import use_all_cores
    from fedjax_srp.xla.disk_cache import cache_programs

__all__ = [
    "SGD",
    "Above",
    "AtLeast",
    "AtMost",
    "Below",
    "Charges",
    "ClientOutput",
    "ClientTimes",
    "Clock",
    "Cohort",
    "Examples",
    "Exchange",
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
    "WorkCosts",
    "adapt",
    "algorithms",
    "cache_programs",
    "clocks",
    "data",
    "debug_client",
    "estimate_memory",
    "evaluate",
    "evaluation",
    "grid",
    "linear",
    "measure",
    "methods",
    "models",
    "named_key",
    "nothing",
    "optimizer",
    "part",
    "participation",
    "personalize",
    "plots",
    "retime",
    "simulate",
    "simulate_seeds",
    "theory",
    "unchanged",
    "use_all_cores",
    "watch",
]

# Imported on first access: JAX, flax and optax take seconds, during which Ctrl-C would not work.
_PARTS = ("Above", "AtLeast", "AtMost", "Below", "Static", "part")
_BASE = (
    *(
        "Charges",
        "ClientOutput",
        "ClientTimes",
        "Clock",
        "Cohort",
        "Examples",
        "Exchange",
        "FederatedAlgorithm",
    ),
    *(
        "Method",
        "ParticipationPolicy",
        "Phase",
        "RoundContext",
        "RoundInfo",
        "TrainingLoss",
    ),
    *("Uncharged", "WorkCosts", "evaluation", "named_key", "nothing", "unchanged"),
)
_HOME = {
    **dict.fromkeys(_BASE, "base"),
    **dict.fromkeys(_PARTS, "parts.part"),
    "SGD": "algorithms.optimizers",
    "History": "results.history",
    "Simulation": "driver.simulation",
    "Training": "algorithms.training",
    "adapt": "driver.adapt",
    "cache_programs": "xla.disk_cache",
    "debug_client": "driver.debug",
    "estimate_memory": "driver.memory",
    "evaluate": "driver.evaluate",
    "grid": "lab.grids.grid",
    "measure": "lab.grids.measure",
    "optimizer": "algorithms.optimizers",
    "personalize": "driver.personalize",
    "retime": "driver.retime",
    "simulate": "driver.simulate",
    "simulate_seeds": "driver.simulate",
    "use_all_cores": "xla.cores",
}
_MODULES = {"plots": "lab.report.plots", "watch": "results.callbacks"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = getattr(
            importlib.import_module(f"{__name__}.{_HOME[name]}"), name
        )
    elif name in __all__:
        globals()[name] = importlib.import_module(
            f"{__name__}.{_MODULES.get(name, name)}"
        )
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
