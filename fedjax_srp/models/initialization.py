"""Where parameters start other than at Flax's defaults, for comparisons with experiments that were run elsewhere."""

from __future__ import annotations

import math
from typing import Literal

import jax

from fedjax_srp._checks import check_choice, checked
from fedjax_srp.base import Array, Key, named_key
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import Options

INITIALIZATIONS = ("torch",)


@checked
def initialized(model: SplitModel, initialization: Literal["torch"]) -> SplitModel:
    """The model whose parameters start as those of another library; everything else stays.

    Flax draws weights from a (truncated) normal distribution with variance 1 / fan_in and starts biases at 0. PyTorch,
    in which FedRep's experiments were run, draws both uniformly from +-1 / sqrt(fan_in): weights with a third of the
    variance.

    Args:
        model: of dense layers, convolutions and layers without parameters.
        initialization: "torch" for the defaults of `torch.nn.Linear` and `torch.nn.Conv2d`.

    Returns:
        A `SplitModel`; where it is cut does not change what is drawn.

    Raises:
        ValueError: an unknown name, or a model with layers of other kinds.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> model = srp.models.initialized(srp.models.mlp((8, 8), num_classes=10, hidden=(32,)), "torch")
        >>> kernel = model.init(jax.random.key(0)).representation["fc1"]["kernel"]
        >>> bool(abs(kernel).max() <= 1 / 8)
        True
    """
    check_choice("initialization", initialization, INITIALIZATIONS)
    for name, layer in _layers(jax.eval_shape(model.init, jax.random.key(0))).items():
        if layer and set(layer) != {"kernel", "bias"}:
            raise ValueError(
                f"initialization={initialization!r} knows layers with a kernel and a bias, and {name} of model "
                f"{model.name!r} has {', '.join(layer)}; leave it out"
            )

    def init(key: Key) -> SplitParams:
        drawn = jax.eval_shape(model.init, key)
        key = named_key(key, initialization)
        redrawn = {name: _uniform(named_key(key, name), layer) for name, layer in _layers(drawn).items()}
        return SplitParams(*({name: redrawn[name] for name in part} for part in drawn))

    options = None if model.options is None else Options({**model.options, "initialization": initialization})
    return model._replace(options=options, init=init, recut=lambda cut: initialized(model.recut(cut), initialization))


def _layers(params: SplitParams) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    return {**params.representation, **params.head}


def _uniform(key: Key, layer: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    if not layer:
        return {}
    bound = 1 / math.sqrt(math.prod(layer["kernel"].shape[:-1]))  # (..., inputs, outputs)
    return {
        name: jax.random.uniform(named_key(key, name), leaf.shape, leaf.dtype, -bound, bound)
        for name, leaf in layer.items()
    }
