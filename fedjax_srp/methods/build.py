"""Construction of methods from their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedjax_srp import models
from fedjax_srp.base import Method, ParticipationPolicy
from fedjax_srp.methods.options import choose, read_unless_name
from fedjax_srp.methods.table import Factory, recipe
from fedjax_srp.models import SplitModel
from fedjax_srp.models.augment import check_dataset
from fedjax_srp.parts.checks import checked


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
    """Return a method, by default with the papers' hyper-parameters (SRPFL, section 5 and appendix C).

    Options are the fields of the algorithm (`srp.algorithms`) and of its inner parts, by short names: `epochs` of its
    `Training`, `learning_rate`, `momentum`, `weight_decay` of its `SGD`; and the fields of its policy
    (`srp.participation`) and of its model (`srp.models`). `option_names` lists them.

    Args:
        name: one of `names()`, the name of an algorithm of `srp.algorithms`, your own class of algorithms, or a
            function `(model, ...) -> FederatedAlgorithm`.
        dataset: determines the shapes of the model.
        model: one of `srp.models.names()`, cut as the method needs it, or a `SplitModel` with its own cut.
        participation: a name of `srp.participation`, whose fields are options; or a policy, as an object or a text
            such as "Fastest(k=N // 2)" for N clients; None for the method's own. With `pool=N`, those of all clients
            train N clients drawn at random.
        shared: options for several methods; those that this method does not read are ignored.
        **options: of this method.

    Returns:
        A `Method` for `srp.simulate`.

    Raises:
        ValueError: an unknown name (with the nearest ones), an option that the method does not read, an argument out of
            range, or a model that does not fit the examples of `dataset`.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("srpfl", dataset=data).participation.name
        'doubling'
    """
    check_dataset(dataset)
    policy = participation
    if policy is not None:
        policy = read_unless_name(policy, getattr(dataset, "num_clients", None))
    choice = choose(name, model, policy, shared, **options)
    of_model = dict(choice.model)
    if isinstance(model, SplitModel):
        augment = of_model.get("augment")
        initialization = of_model.get("initialization")
        whole = models.adjusted(model, dataset, augment, initialization)
    else:
        of_model.setdefault("head_layers", recipe(name).head_layers)
        whole = models.get(model, dataset, **of_model)
    return choice.method_with(whole)
