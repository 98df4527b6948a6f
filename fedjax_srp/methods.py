"""Methods by name: an algorithm with its participation, at the papers' hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import optax

from . import algorithms, models, participation
from ._checks import unknown
from .base import FederatedAlgorithm, Method
from .models import SplitModel


class Options(NamedTuple):
    """What a recipe may use of the arguments of `get`."""

    optimizer: optax.GradientTransformation
    inner_step_size: float
    batch_size: int
    local_epochs: int
    head_epochs: int
    representation_epochs: int
    fine_tune_epochs: int
    client_weighting: str


class Recipe(NamedTuple):
    """One row of the table of methods."""

    build: Callable[[SplitModel, Options], FederatedAlgorithm]
    doubling: bool  # SRPFL's participation; otherwise everybody, or `pool` clients at random
    head_layers: int  # above the model's cut
    twin: str | None  # the same algorithm without doubling
    source: str
    learning_rate: float = 0.01  # SRPFL, section 5


def _fedrep(model: SplitModel, o: Options) -> FederatedAlgorithm:
    return algorithms.fedrep(
        model,
        o.optimizer,
        o.batch_size,
        o.head_epochs,
        o.representation_epochs,
        o.local_epochs,
        fine_tune_epochs=o.fine_tune_epochs,
        client_weighting=o.client_weighting,
    )


def _common(o: Options) -> dict[str, Any]:
    return {
        "optimizer": o.optimizer,
        "batch_size": o.batch_size,
        "local_epochs": o.local_epochs,
        "fine_tune_epochs": o.fine_tune_epochs,
        "client_weighting": o.client_weighting,
    }


def _lg_fedavg(model: SplitModel, o: Options) -> FederatedAlgorithm:
    return algorithms.lg_fedavg(model, **_common(o))


def _fedavg(model: SplitModel, o: Options) -> FederatedAlgorithm:
    return algorithms.fedavg(model, **_common(o))


def _fedavg_ft(model: SplitModel, o: Options) -> FederatedAlgorithm:
    return algorithms.fedavg(model, **_common(o), evaluation="fine_tune")


def _hf_maml(model: SplitModel, o: Options) -> FederatedAlgorithm:
    return algorithms.hf_maml(model, inner_step_size=o.inner_step_size, **_common(o))


RECIPES: dict[str, Recipe] = {
    "srpfl": Recipe(_fedrep, True, 1, "fedrep", "SRPFL, Algorithm 1: fedrep x doubling"),
    "fedrep": Recipe(_fedrep, False, 1, None, "FedRep, Algorithm 1"),
    "lg_srpfl": Recipe(_lg_fedavg, True, 2, "lg_fedavg", "SRPFL, section 5: lg_fedavg x doubling"),
    "lg_fedavg": Recipe(_lg_fedavg, False, 2, None, "Liang et al. 2020, the last two layers global"),
    "flanp_fedavg": Recipe(_fedavg, True, 1, "fedavg", "FLANP as a baseline of SRPFL: fedavg x doubling"),
    "fedavg": Recipe(_fedavg, False, 1, None, "McMahan et al. 2017"),
    "flanp_fedavg_ft": Recipe(_fedavg_ft, True, 1, "fedavg_ft", "flanp_fedavg judged after fine-tuning the last layer"),
    "fedavg_ft": Recipe(_fedavg_ft, False, 1, None, "fedavg judged after fine-tuning the last layer"),
    "hf_maml": Recipe(_hf_maml, False, 1, None, "Per-FedAvg, Fallah et al. 2020, Hessian-free", 0.1),
}


def names() -> list[str]:
    """The methods that `get` knows."""
    return list(RECIPES)


def recipe(name: str) -> Recipe:
    """The row of one method.

    Raises:
        ValueError: no such method; the nearest names are in the message.
    """
    if name not in RECIPES:
        raise unknown("method", name, RECIPES)
    return RECIPES[name]


def get(
    name: str,
    *,
    dataset: Any,
    model: str | SplitModel = "mlp",
    optimizer: optax.GradientTransformation | None = None,
    learning_rate: float | None = None,
    inner_step_size: float = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int = 10,
    local_epochs: int = 1,
    head_epochs: int = 10,
    representation_epochs: int = 1,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    initial: int = 10,
    rounds_per_stage: int | Sequence[int] = 10,
    pool: int | None = None,
    redraw: Literal["round", "stage"] = "round",
    augment: Literal["crop_flip"] | None = None,
    **model_options: Any,
) -> Method:
    """A method of the SRPFL paper, at its hyper-parameters unless told otherwise (section 5 and appendix C).

    Args:
        name: one of `names()`.
        dataset: what it will run on; gives the model its shapes.
        model: one of `srp.models.names()`, cut where the method wants it, or a `SplitModel` cut as you want it.
        optimizer: of local training; None for SGD with the next three.
        learning_rate: step size of local training; None for the paper's, 0.01 (HF-MAML: beta = 0.1).
        inner_step_size: alpha of HF-MAML; 0.01 in the paper.
        momentum: 0 in SRPFL's text; its code and FedRep's paper have 0.5 for FedRep and SRPFL.
        weight_decay: on weights only; 0 in the text, 1e-4 in the code.
        batch_size: 10 in the paper.
        local_epochs: epochs of a round (FedRep: alternations of head and representation epochs); 1 for CIFAR-10 and 5
            for the other data sets of the paper.
        head_epochs: FedRep's epochs of the head, per alternation.
        representation_epochs: FedRep's epochs of the representation, per alternation.
        fine_tune_epochs: before a client is judged by a fine-tuned model.
        client_weighting: "uniform" (pseudo-code) or "num_examples" (code).
        initial: n_0 of the doubling methods.
        rounds_per_stage: tau_r of the doubling methods, one number or one per stage.
        pool: N clients drawn at random, among which the fastest take part (doubling) or who all take part (the others);
            None for all M.
        redraw: when doubling methods redraw the pool: "round" or "stage" (Remark 3.1).
        augment: what happens to inputs in training: "crop_flip" shifts images by up to 4 pixels and mirrors half of
            them, as the authors' code does on CIFAR; None for nothing.
        **model_options: passed to the model, for example `hidden=(64, 32)`.

    Returns:
        A `Method`, to be passed to `srp.simulate`.

    Raises:
        ValueError: an unknown name (with the nearest ones) or an argument out of range.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("srpfl", dataset=data).participation.name
        'doubling'
    """
    row = recipe(name)
    if isinstance(model, str):
        model = models.get(model, dataset, head_layers=row.head_layers, **model_options)
    elif model_options:
        raise ValueError(
            f"{', '.join(model_options)}: options of a model given by name, but model is a SplitModel already"
        )
    if augment is not None:
        model = models.augmented(model, models.augmentation(augment, dataset))
    if optimizer is None:
        rate = row.learning_rate if learning_rate is None else learning_rate
        optimizer = algorithms.sgd(rate, momentum, weight_decay)
    options = Options(
        optimizer,
        inner_step_size,
        batch_size,
        local_epochs,
        head_epochs,
        representation_epochs,
        fine_tune_epochs,
        client_weighting,
    )
    if row.doubling:
        policy = participation.doubling(initial, rounds_per_stage, pool, redraw)
    else:
        policy = participation.full() if pool is None else participation.uniform(pool)
    return Method(name, row.build(model, options), policy)
