"""Methods built from their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedjax_srp import models
from fedjax_srp._checks import check_integer, checked
from fedjax_srp.base import FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.methods.options import Choice, choose, name_of
from fedjax_srp.methods.table import BUILT_IN_POLICIES, POLICIES, Factory, recipe
from fedjax_srp.models import SplitModel
from fedjax_srp.models.augment import check_dataset
from fedjax_srp.options import build


@checked
def get(
    name: str | Factory,
    *,
    dataset: Any,
    model: str | SplitModel = "mlp",
    participation: str | ParticipationPolicy | None = None,
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> Method:
    """A method, by default at the hyper-parameters of the papers (SRPFL, section 5 and appendix C).

    Options are the fields of the algorithm (`srp.algorithms`) and of the parts in it, by short names: `epochs` of its
    `Training`, `learning_rate`, `momentum`, `weight_decay` of its `SGD`; the fields of its policy
    (`srp.participation`) and of its model (`srp.models`). `option_names` lists them.

    Args:
        name: one of `names()`, an algorithm of `srp.algorithms` by its name, your own class of algorithms, or a
            function `(model, ...) -> FederatedAlgorithm`.
        dataset: gives the model its shapes.
        model: one of `srp.models.names()`, cut where the method needs it, or a `SplitModel` with its own cut.
        participation: a name of `srp.participation`, or a policy; None for the method's own. With `pool=N`, methods
            without doubling train N clients drawn at random.
        shared: options for several methods, of which this one ignores the others': for grids.
        **options: of this method.

    Returns:
        A `Method`, to be passed to `srp.simulate`.

    Raises:
        ValueError: an unknown name (with the nearest ones), an option that the method does not read, an argument out of
            range, a model that does not fit the examples of `dataset`.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("srpfl", dataset=data).participation.name
        'doubling'
    """
    check_dataset(dataset)
    choice = choose(name, model, participation, shared, **options)
    route = choice.route
    if route.participation in BUILT_IN_POLICIES:
        _check_sizes(dataset, **{o: v for o, v in choice.policy.items() if o in ("pool", "initial", "k")})
    policy = participation
    if not isinstance(policy, ParticipationPolicy):
        policy = build(POLICIES[route.participation], choice.policy)
    made = choice.made(_model(name, choice, dataset, model))
    if not isinstance(made, FederatedAlgorithm):
        raise ValueError(f"{name_of(route.factory)}: returned {made!r}, not a FederatedAlgorithm")
    return Method(choice.name, made, policy)


def _check_sizes(dataset: Any, **sizes: int | None) -> None:
    num_clients = getattr(dataset, "num_clients", None)
    for argument, size in sizes.items():
        if size is not None and check_integer(argument, size, 1) > (num_clients or size):
            raise ValueError(f"{argument}={size} is larger than num_clients={num_clients}; give at most {num_clients}")


def _model(name: str | Factory, choice: Choice, dataset: Any, model: str | SplitModel) -> SplitModel:
    options = choice.model
    if isinstance(model, SplitModel):
        return models.adjusted(model, dataset, options.get("augment"), options.get("initialization"))
    options = {"head_layers": recipe(name).head_layers, **options}
    whole = models.get(model, dataset, **{**options, "head_layers": 0})
    if check_integer("head_layers", options["head_layers"], 0) > len(whole.layer_names):
        raise ValueError(
            f"method {name!r} takes the last {options['head_layers']} layers of a model as its head and model "
            f"{model!r} has {len(whole.layer_names)} ({', '.join(whole.layer_names)}); give it more, e.g. "
            "hidden=(64, 32)"
        )
    return models.get(model, dataset, **options)
