"""Table of methods, one row each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_srp import algorithms
from fedjax_srp.base import FederatedAlgorithm, ParticipationPolicy
from fedjax_srp.parts.registry import Registry

# Makes an algorithm on examples; its first argument is the model.
Factory = Callable[..., FederatedAlgorithm]


class Recipe(NamedTuple):
    """Row of the table of methods."""

    factory: Factory
    # A name of `srp.participation`, whose fields are options; or a policy, as an object or a text, which has none.
    participation: str | ParticipationPolicy = "full"
    head_layers: int = 1  # above the model's cut
    label: str = ""  # in tables and figures
    # Of its curves, shared with its twin; None for the next one of a cycle.
    color: str | None = None
    twin: str | None = None  # the same algorithm without doubling
    source: str = ""
    # Of algorithm and policy, other than their defaults.
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def doubling(self) -> bool:
        """True if its cohorts double, as in SRPFL and FLANP; their curves are solid, all others dashed."""
        return self.participation in ("doubling", "statistical_accuracy")


# Okabe and Ito's palette, suited to the common forms of colour blindness.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PINK = "#CC79A7"
ORANGE = "#E69F00"
GREY = "#333333"
SKY = "#56B4E9"
WINE = "#882255"
STAGES = "statistical_accuracy"
FedAvg = algorithms.FedAvg
FedGATE = algorithms.FedGATE
FedNova = algorithms.FedNova
FedRep = algorithms.FedRep
FedAvgFT = functools.partial(FedAvg, evaluation="fine_tune")
FedProxFT = functools.partial(algorithms.FedProx, evaluation="fine_tune")
SCAFFOLDFT = functools.partial(algorithms.SCAFFOLD, evaluation="fine_tune")
# A unit of work for each of the five rates.
NARROW = MappingProxyType({"max_work": 5, "on_time": 0.5})
# A unit of work for each of the four blocks, or ranks.
FOUR = MappingProxyType({"max_work": 4, "on_time": 0.5})
LIANG = "Liang et al. 2020, the last two layers global"

# fmt: off
_ROWS: dict[str, Recipe] = {
    "srpfl": Recipe(FedRep, "doubling", 1, "SRPFL", BLUE, "fedrep", "SRPFL, Algorithm 1: fedrep x doubling"),
    "fedrep": Recipe(FedRep, "full", 1, "FedRep", BLUE, None, "FedRep, Algorithm 1"),
    "lg_srpfl": Recipe(algorithms.LGFedAvg, "doubling", 2, "LG-SRPFL", VERMILLION, "lg_fedavg", "SRPFL, section 5: lg_fedavg x doubling"),  # noqa: E501
    "lg_fedavg": Recipe(algorithms.LGFedAvg, "full", 2, "LG-FedAvg", VERMILLION, None, LIANG),
    "flanp_fedavg": Recipe(FedAvg, "doubling", 1, "FLANP (FedAvg)", GREEN, "fedavg", "FLANP as a baseline of SRPFL: fedavg x doubling"),  # noqa: E501
    "fedavg": Recipe(FedAvg, "full", 1, "FedAvg", GREEN, None, "McMahan et al. 2017"),
    "flanp_fedavg_ft": Recipe(FedAvgFT, "doubling", 1, "FLANP-FT", PINK, "fedavg_ft", "flanp_fedavg judged after fine-tuning the last layer"),  # noqa: E501
    "fedavg_ft": Recipe(FedAvgFT, "full", 1, "FedAvg-FT", PINK, None, "fedavg judged after fine-tuning the last layer"),
    "fedbuff": Recipe(algorithms.FedBuff, "buffered", 1, "FedBuff", ORANGE, None, "Nguyen et al. 2022, an asynchronous server"),  # noqa: E501
    "fedasync": Recipe(algorithms.FedAsync, "buffered", 1, "FedAsync", None, None, "Xie et al. 2019", {"k": 1}),
    "fedat": Recipe(algorithms.FedAT, "asynchronous_tiers", 1, "FedAT", None, None, "Chai et al. 2021, without compression"),  # noqa: E501
    "asyncsgd": Recipe(algorithms.AsyncSGD, "queued", 1, "AsyncSGD", None, None, "Leconte et al. 2024, draws with given weights"),  # noqa: E501
    "fedcompass": Recipe(algorithms.FedCompass, "compass", 1, "FedCompass", None, None, "Li et al. 2024, groups that arrive together"),  # noqa: E501
    "hf_maml": Recipe(algorithms.HFMAML, "full", 1, "HF-MAML", GREY, None, "Per-FedAvg, Fallah et al. 2020, Hessian-free"),  # noqa: E501
    "local_only": Recipe(algorithms.LocalOnly, label="Local only", source="every client alone"),
    "fedsgd": Recipe(algorithms.FedSGD, label="FedSGD", source="McMahan et al. 2017, distributed gradient descent"),
    "fedprox": Recipe(algorithms.FedProx, label="FedProx", source="Li et al. 2020"),
    "fedprox_ft": Recipe(FedProxFT, label="FedProx-FT", source="fedprox judged after fine-tuning the last layer"),
    "scaffold": Recipe(algorithms.SCAFFOLD, label="SCAFFOLD", source="Karimireddy et al. 2020, Algorithm 1, option II"),
    "scaffold_ft": Recipe(SCAFFOLDFT, label="SCAFFOLD-FT", source="scaffold judged after fine-tuning the last layer"),
    "fed_mtl": Recipe(algorithms.FedMTL, label="Fed-MTL", source="Smith et al. 2017, constant task relations"),
    "fedper": Recipe(algorithms.FedPer, label="FedPer", source="Arivazhagan et al. 2019"),
    "per_fedavg": Recipe(algorithms.PerFedAvg, label="PerFedAvg", source="Fallah et al. 2020, as in FedRep's table"),
    "l2gd": Recipe(algorithms.L2GD, label="L2GD", source="Hanzely and Richtarik 2020, epochs of local SGD"),
    "apfl": Recipe(algorithms.APFL, label="APFL", source="Deng et al. 2020"),
    "ditto": Recipe(algorithms.Ditto, label="Ditto", source="Li et al. 2021"),
    "fedavgm": Recipe(algorithms.FedOpt, label="FedAvgM", source="Hsu et al. 2019", options={"rule": "momentum", "server_step_size": 1.0}),  # noqa: E501
    "fedadagrad": Recipe(algorithms.FedOpt, label="FedAdagrad", source="Reddi et al. 2021", options={"rule": "adagrad", "beta1": 0.0}),  # noqa: E501
    "fedadam": Recipe(algorithms.FedOpt, label="FedAdam", source="Reddi et al. 2021", options={"rule": "adam"}),
    "fedyogi": Recipe(algorithms.FedOpt, label="FedYogi", source="Reddi et al. 2021", options={"rule": "yogi"}),
    "moon": Recipe(algorithms.MOON, label="MOON", source="Li et al. 2021, features compared at the cut"),
    "fedbabu": Recipe(algorithms.FedBABU, label="FedBABU", source="Oh et al. 2022"),
    "fedbn": Recipe(algorithms.FedBN, label="FedBN", source="Li et al. 2021"),
    "fedrod": Recipe(algorithms.FedRoD, label="FedRoD", source="Chen and Chao 2022, linear personal heads"),
    "fedproto": Recipe(algorithms.FedProto, label="FedProto", source="Tan et al. 2022, prototypes at the cut"),
    "knn_per": Recipe(algorithms.KNNPer, label="kNN-Per", source="Marfoq et al. 2022, one share for all clients"),
    "feddyn": Recipe(algorithms.FedDyn, label="FedDyn", source="Acar et al. 2021, Algorithm 1"),
    "mifa": Recipe(algorithms.MIFA, label="MIFA", source="Gu et al. 2021, Algorithm 1"),
    "fedvarp": Recipe(algorithms.FedVARP, label="FedVARP", source="Jhunjhunwala et al. 2022, Algorithm 1"),
    "pfedme": Recipe(algorithms.PFedMe, label="pFedMe", source="Dinh et al. 2020, Algorithm 1, theta goes on within a round"),  # noqa: E501
    "fedala": Recipe(algorithms.FedALA, label="FedALA", source="Zhang et al. 2023, the last layer adapted, a fixed number of first epochs"),  # noqa: E501
    "fedamp": Recipe(algorithms.FedAMP, label="FedAMP", source="Huang et al. 2021, attention 1 - exp(-x / sigma)"),
    "fedpac": Recipe(algorithms.FedPAC, label="FedPAC", source="Xu et al. 2023, one optimizer for head and body"),
    "fedas": Recipe(algorithms.FedAS, label="FedAS", source="Yang et al. 2024, features aligned example by example"),
    "fedphp": Recipe(algorithms.FedPHP, label="FedPHP", source="Li et al. 2021, taught by distillation"),
    "feddbe": Recipe(algorithms.FedDBE, label="FedDBE", source="Zhang et al. 2023, momentum 1"),
    "fedcac": Recipe(algorithms.FedCAC, label="FedCAC", source="Wu et al. 2023, among the participants"),
    "gpfl": Recipe(algorithms.GPFL, label="GPFL", source="Zhang et al. 2023, downloaded embeddings"),
    "fedcp": Recipe(algorithms.FedCP, label="FedCP", source="Zhang et al. 2023, without Gumbel noise"),
    "ifca": Recipe(algorithms.IFCA, label="IFCA", source="Ghosh et al. 2020, Algorithm 1, model averaging"),
    "feddwa": Recipe(algorithms.FedDWA, label="FedDWA", source="Liu et al. 2023, mixtures of the five nearest models"),
    "fedfomo": Recipe(algorithms.FedFomo, label="FedFomo", source="Zhang et al. 2021, models of the participants"),
    "apple": Recipe(algorithms.APPLE, label="APPLE", source="Luo and Wu 2022, equal first models"),
    "q_fedavg": Recipe(algorithms.QFedAvg, label="q-FedAvg", source="Li et al. 2020, Algorithm 2", options={"weighting": "num_examples"}),  # noqa: E501
    "afl": Recipe(algorithms.AFL, label="AFL", source="Mohri et al. 2019, epochs of local SGD; the paper has steps=1"),
    "heterofl": Recipe(algorithms.HeteroFL, "partial_work", 1, "HeteroFL", None, None, "Diao et al. 2021, rates by units of work", NARROW),  # noqa: E501
    "fedrolex": Recipe(algorithms.FedRolex, "partial_work", 1, "FedRolex", None, None, "Alam et al. 2022, rates by units of work", NARROW),  # noqa: E501
    "fjord": Recipe(algorithms.FjORD, "partial_work", 1, "FjORD", None, None, "Horvath et al. 2021, without distillation", NARROW),  # noqa: E501
    "depthfl": Recipe(algorithms.DepthFL, "partial_work", 1, "DepthFL", None, None, "Kim et al. 2023, DepthFL (FedAvg), depths by units of work", FOUR),  # noqa: E501
    "sliding_window": Recipe(algorithms.SlidingWindow, "partial_work", 1, "Sliding window", None, None, "after FedEL, Zhang et al. 2025: its window, moved by a rule of our own", FOUR),  # noqa: E501
    "hetlora": Recipe(algorithms.HetLoRA, "partial_work", 1, "HetLoRA", None, None, "Cho et al. 2024, ranks by units of work, without pruning", FOUR),  # noqa: E501
    "flexlora": Recipe(algorithms.FlexLoRA, "partial_work", 1, "FlexLoRA", None, None, "Bai et al. 2024, ranks by units of work", FOUR),  # noqa: E501
    "flanp": Recipe(FedGATE, STAGES, 1, "FLANP", SKY, "fedgate", "FLANP, Algorithm 2: fedgate x statistical_accuracy"),
    "fedgate": Recipe(FedGATE, "full", 1, "FedGATE", SKY, None, "Haddadpour et al. 2020, without compression"),
    "flanp_fedavg_criterion": Recipe(FedAvg, STAGES, 1, "FLANP (FedAvg, criterion)", GREEN, "fedavg", "FLANP, Algorithm 1: fedavg x statistical_accuracy"),  # noqa: E501
    "flanp_fednova": Recipe(FedNova, STAGES, 1, "FLANP (FedNova)", WINE, "fednova", "FLANP, Algorithm 1: fednova x statistical_accuracy", {"max_work": 10, "on_time": 0.5}),  # noqa: E501
    "fednova": Recipe(FedNova, "partial_work", 1, "FedNova", WINE, None, "Wang et al. 2020, as many epochs as fit the clock, up to 10"),  # noqa: E501
}
# fmt: on
RECIPES: Registry[Recipe] = Registry("method", _ROWS, adds="srp.methods.register")


def names() -> list[str]:
    """Return the names of the methods."""
    return RECIPES.names()


def recipe(name: str | Factory) -> Recipe:
    """Return the row of a method; a factory, or an algorithm without a row, gets a new one."""
    if callable(name):
        check_factory(name)
        return Recipe(name)
    if name not in RECIPES:
        algorithm = _algorithms().get(name)
        if algorithm is not None:
            return Recipe(algorithm)
    return RECIPES[name]


def _algorithms() -> dict[str, Factory]:
    classes = [getattr(algorithms, name) for name in algorithms.__all__]
    return {cls.name: cls for cls in classes if _is_factory(cls)}


def algorithm_names() -> list[str]:
    """Return the names of the algorithms on examples, with or without a row."""
    return [*_algorithms()]


def _is_factory(factory: Any) -> bool:
    if not callable(factory):
        return False
    arguments = list(inspect.signature(factory).parameters)
    return arguments[:1] == ["model"]


def check_factory(factory: Any) -> None:
    """Raise a ValueError of one line unless the first argument of a factory is called model."""
    if not _is_factory(factory):
        name = getattr(factory, "__name__", repr(factory))
        raise ValueError(
            f"factory={name} makes no algorithm on examples: its first field, or argument, must be called model; "
            "algorithms on linear tasks are called in Python"
        )


def label(name: str) -> str:
    """Return the label of a method in tables and figures; of an unknown method, its name."""
    base, plus, policy = name.partition(" + ")
    row = RECIPES.get(base)
    if row is None or not row.label:
        return name
    return row.label + plus + policy
