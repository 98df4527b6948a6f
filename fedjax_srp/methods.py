"""Methods by name: an algorithm with its participation, at the papers' hyper-parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import optax

from fedjax_srp import algorithms, models, participation
from fedjax_srp._checks import check_integer, unknown
from fedjax_srp.algorithms.local import check_momentum
from fedjax_srp.base import FederatedAlgorithm, Method
from fedjax_srp.models import SplitModel


class Recipe(NamedTuple):
    """One row of the table of methods."""

    factory: Callable[..., FederatedAlgorithm]  # gets a model, and of the arguments of `get` those that it takes
    doubling: bool  # SRPFL's participation; otherwise everybody, or `pool` clients at random
    head_layers: int  # above the model's cut
    twin: str | None  # the same algorithm without doubling
    source: str


_fedavg_ft = functools.partial(algorithms.fedavg, evaluation="fine_tune")

RECIPES: dict[str, Recipe] = {
    "srpfl": Recipe(algorithms.fedrep, True, 1, "fedrep", "SRPFL, Algorithm 1: fedrep x doubling"),
    "fedrep": Recipe(algorithms.fedrep, False, 1, None, "FedRep, Algorithm 1"),
    "lg_srpfl": Recipe(algorithms.lg_fedavg, True, 2, "lg_fedavg", "SRPFL, section 5: lg_fedavg x doubling"),
    "lg_fedavg": Recipe(algorithms.lg_fedavg, False, 2, None, "Liang et al. 2020, the last two layers global"),
    "flanp_fedavg": Recipe(algorithms.fedavg, True, 1, "fedavg", "FLANP as a baseline of SRPFL: fedavg x doubling"),
    "fedavg": Recipe(algorithms.fedavg, False, 1, None, "McMahan et al. 2017"),
    "flanp_fedavg_ft": Recipe(_fedavg_ft, True, 1, "fedavg_ft", "flanp_fedavg judged after fine-tuning the last layer"),
    "fedavg_ft": Recipe(_fedavg_ft, False, 1, None, "fedavg judged after fine-tuning the last layer"),
    "hf_maml": Recipe(algorithms.hf_maml, False, 1, None, "Per-FedAvg, Fallah et al. 2020, Hessian-free"),
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


def without_effect(name: str) -> list[str]:
    """The arguments of `get` that only other methods read.

    Raises:
        ValueError: no such method.

    Example:
        >>> without_effect("srpfl")
        ['inner_step_size']
    """
    row = recipe(name)
    read = _arguments(row.factory) | (_arguments(participation.doubling) if row.doubling else {"pool"})
    by_some = _arguments(participation.doubling).union(*(_arguments(other.factory) for other in RECIPES.values()))
    return [argument for argument in inspect.signature(get).parameters if argument in by_some - read]


def _arguments(function: Callable) -> set[str]:
    return set(inspect.signature(function).parameters)


def get(
    name: str,
    *,
    dataset: Any,
    model: str | SplitModel = "mlp",
    optimizer: optax.GradientTransformation | None = None,
    learning_rate: float = 0.01,
    inner_step_size: float = 0.01,
    momentum: float = 0.0,
    fine_tune_momentum: float | None = None,
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

    One set of arguments serves every method, so that a grid can pass the same ones to all of them: what only other
    methods read (`without_effect`) is ignored.

    Args:
        name: one of `names()`.
        dataset: what it will run on; gives the model its shapes.
        model: one of `srp.models.names()`, cut where the method wants it, or a `SplitModel` cut as you want it.
        optimizer: of local training; None for SGD with `learning_rate`, `momentum` and `weight_decay`.
        learning_rate: step size of local training; 0.01 in all experiments of the paper (its code has beta = 0.1 for
            HF-MAML).
        inner_step_size: alpha of HF-MAML; 0.01 in the code, unsaid in the text.
        momentum: 0 in SRPFL's text; its code and FedRep's paper have 0.5 for FedRep and SRPFL.
        fine_tune_momentum: of fine-tuning, which then is SGD with `learning_rate` and `weight_decay`; None fine-tunes
            as in training. The code has 0.5 in every method, also where training has none.
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
        ValueError: an unknown name (with the nearest ones), an argument out of range, a model that does not take the
            examples of `dataset`.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("srpfl", dataset=data).participation.name
        'doubling'
    """
    row = recipe(name)
    _check_sizes(dataset, pool=pool, **({"initial": initial} if row.doubling else {}))
    if isinstance(model, str):
        of_models = models.option_names()
        for option in set(model_options).difference(*of_models.values()):
            own = [
                argument
                for argument, what in inspect.signature(get).parameters.items()
                if what.kind == what.KEYWORD_ONLY
            ]
            known = [*own, *of_models.get(model, ())]
            raise unknown(f"option of method {name!r} or its model", option, known)
        model = _cut_for(name, models.get(model, dataset, **model_options))
    elif model_options:
        raise ValueError(
            f"{', '.join(model_options)}: options of a model given by name, but model is a SplitModel already"
        )
    if augment is not None:
        model = models.augmented(model, models.augmentation(augment, dataset))
    fine_tune_optimizer = None
    if fine_tune_momentum is not None:
        check_momentum("fine_tune_momentum", fine_tune_momentum)
        fine_tune_optimizer = algorithms.sgd(learning_rate, fine_tune_momentum, weight_decay)
    options = {
        "optimizer": algorithms.sgd(learning_rate, momentum, weight_decay) if optimizer is None else optimizer,
        "inner_step_size": inner_step_size,
        "batch_size": batch_size,
        "local_epochs": local_epochs,
        "head_epochs": head_epochs,
        "representation_epochs": representation_epochs,
        "fine_tune_epochs": fine_tune_epochs,
        "client_weighting": client_weighting,
        "fine_tune_optimizer": fine_tune_optimizer,
    }
    taken = _arguments(row.factory)
    algorithm = row.factory(model, **{argument: value for argument, value in options.items() if argument in taken})
    if row.doubling:
        policy = participation.doubling(initial, rounds_per_stage, pool, redraw)
    else:
        policy = participation.full() if pool is None else participation.uniform(pool)
    return Method(name, algorithm, policy)


def _check_sizes(dataset: Any, **sizes: int | None) -> None:
    """Refuses numbers of participants below 1 and, where the data has a number of clients, above it."""
    num_clients = getattr(dataset, "num_clients", None)
    for argument, size in sizes.items():
        if size is not None and check_integer(argument, size, 1) > (num_clients or size):
            raise ValueError(f"{argument}={size} is larger than num_clients={num_clients}; give at most {num_clients}")


def _cut_for(name: str, model: SplitModel) -> SplitModel:
    """A model cut where a method wants it."""
    head_layers = recipe(name).head_layers
    if head_layers > len(model.layers):
        raise ValueError(
            f"method {name!r} takes the last {head_layers} layers of a model as its head and model {model.name!r} has "
            f"{len(model.layers)} ({', '.join(model.layers)}); give it more, e.g. hidden=(64, 32)"
        )
    return model.cut_above(head_layers)
