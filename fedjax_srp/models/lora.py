"""LoRA: low-rank matrices beside a model's dense kernels, with the cut between the two."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.models.split import Layer, SplitModel, SplitParams, _apply
from fedjax_srp.parts.checks import check_choice, checked
from fedjax_srp.parts.part import Above, Count, Leaf, part


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoRAFeatures:
    """The features of a LoRA model, whose head runs the whole model: the inputs, and the base."""

    x: Array
    base: PyTree
    # BatchNorm keeps its running statistics
    is_fixed: bool = dataclasses.field(metadata={"static": True})


@part
class LoRA(SplitModel):
    """The result of `lora`: the base below the cut, the low-rank matrices above it."""

    name: ClassVar[str] = "lora"

    model: SplitModel
    rank: Count = 4
    scaling: Annotated[float, Above(0)] = 1.0
    layers: tuple[str, ...] | None = None
    is_frozen: bool = False
    pretrained: Leaf[Any] = None
    _: dataclasses.KW_ONLY
    cut: str | None = "lora"

    def __post_init__(self) -> None:
        if self.cut != "lora":
            raise ValueError(
                f"cut={self.cut!r}: LoRA is cut between base and low-rank matrices; leave it out"
            )
        for layer in self.layers or ():
            check_choice("layers", layer, self.model.layer_names)
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        if not self._kernels(_layers(shapes)):
            raise ValueError(
                f"layers={self.layers}: no dense kernel in model {self.model.name!r}; "
                "choose other layers"
            )
        if self.pretrained is not None and not _have_shapes(self.pretrained, shapes):
            raise ValueError(
                f"pretrained: no parameters of model {self.model.name!r}; give those of model.init"
            )
        super().__post_init__()

    @override
    def stack(self) -> Sequence[Layer]:
        return self.model.stack()

    @property
    @override
    def layer_names(self) -> tuple[str, ...]:
        """The parts below and above the cut."""
        return ("base", "lora")

    @property
    @override
    def input_dtype(self) -> Any:
        return self.model.input_dtype

    @property
    @override
    def takes_classes(self) -> bool:  # type: ignore[override]
        return self.model.takes_classes

    @property
    @override
    def _stem_layers(self) -> list[Any]:
        return []

    def _kernels(self, base: PyTree) -> dict[str, Any]:
        kernels = {}
        for path, leaf in jax.tree.leaves_with_path(base):
            layer = path[0].key
            name = _path_name(path)
            is_chosen = self.layers is None or layer in self.layers
            if is_chosen and name.endswith("/kernel") and leaf.ndim == 2:
                kernels[name] = leaf
        return kernels

    @override
    def init(self, key: Key) -> SplitParams:
        """The initial parameters: A is normal with variance 1 / inputs, B is 0, as in the base."""
        params = self.pretrained
        if params is None:
            params = self.model.init(key)
        base = _layers(params)
        matrices = {}
        for name, kernel in self._kernels(base).items():
            inputs, outputs = kernel.shape
            a = jax.random.normal(named_key(key, name), (inputs, self.rank), kernel.dtype)
            matrices[name] = {
                "a": a / jnp.sqrt(jnp.asarray(inputs, a.dtype)),
                "b": jnp.zeros((self.rank, outputs), kernel.dtype),
            }
        return SplitParams(base, matrices)

    @override
    def represent(self, representation: PyTree, x: Array, key: Key | None = None) -> Any:
        """The inputs and the base: every layer needs the low-rank matrices."""
        if self.is_frozen:
            representation = jax.lax.stop_gradient(representation)
        return LoRAFeatures(self._augmented(x, key), representation, self.is_frozen)

    @override
    def rest(self, representation: PyTree, x: Array, key: Key | None = None) -> Any:
        """As `represent`, with frozen BatchNorm."""
        return dataclasses.replace(self.represent(representation, x, key), is_fixed=True)

    @override
    def classify(self, head: PyTree, features: Any, key: Key | None = None) -> Array:
        """The whole model with W + scaling A B in place of each kernel W."""

        def adapted(path: Any, leaf: Array) -> Array:
            matrices = head.get(_path_name(path))
            if matrices is None:
                return leaf
            # W + (alpha / r) A B                                                          (eq. 3)
            return leaf + jnp.asarray(self.scaling, leaf.dtype) * (
                matrices["a"] @ matrices["b"]
            )

        params = jax.tree.map_with_path(adapted, features.base)
        model = self.model.recut(None)  # its representation is the whole model
        layers, _ = model._sides
        x = model._augmented(features.x, key)
        return _apply(layers, params, x, key, features.is_fixed)

    @override
    def loss(self, logits: Array, y: Array) -> Array:
        return self.model.loss(logits, y)


def _have_shapes(params: PyTree, shapes: PyTree) -> bool:
    if jax.tree.structure(params) != jax.tree.structure(shapes):
        return False
    for leaf, shape in zip(jax.tree.leaves(params), jax.tree.leaves(shapes), strict=True):
        if jnp.shape(leaf) != shape.shape or jnp.result_type(leaf) != shape.dtype:
            return False
    return True


def _layers(params: SplitParams) -> PyTree:
    return {**params.representation, **params.head}


def _path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


@checked
def lora(
    model: SplitModel,
    rank: Count = 4,
    scaling: Annotated[float, Above(0)] = 1.0,
    layers: tuple[str, ...] | None = None,
    is_frozen: bool = False,
    pretrained: Any = None,
) -> LoRA:
    """Make a model with dense kernels W + scaling A B, cut between W and the matrices A and B.

    LoRA (Hu et al., 2022). As for every cut, the algorithm decides which part is personal: FedPer
    and FedRep share the base, LG-FedAvg shares the matrices. With `is_frozen` the base has no
    gradient: LG-FedAvg then trains and sends only the matrices (FedIT, Zhang et al., 2024), FedPer
    trains only personal matrices; use no weight decay, which would move the base. Methods that need
    features (FedAS, FedCP, FedPAC, FedProto, GPFL, kNN-Per, MOON) do not work with LoRA.

    Args:
        model: the base; its cut does not matter.
        rank: r, of A (inputs, r) and B (r, outputs).
        scaling: alpha / r.
        layers: names of the layers of the base whose dense kernels get matrices; None for all.
            Convolutions and embeddings get none.
        is_frozen: keep the base constant, with the running statistics of its BatchNorm.
        pretrained: initial parameters of the base, as returned by `model.init`; None draws them.

    Raises:
        ValueError: an unknown layer, a model without dense kernels, parameters of another model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.lora(srp.models.MLP((8, 8), 10, hidden=(32,)), rank=2)
        >>> list(model.init(jax.random.key(0)).head)
        ['fc1/kernel', 'out/kernel']
    """
    return LoRA(
        model.input_shape,
        model.num_classes,
        model,
        rank,
        scaling,
        layers,
        is_frozen,
        pretrained,
    )
