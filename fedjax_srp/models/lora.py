"""LoRA: a model with low-rank matrices beside its dense kernels, cut between kernels and matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

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
    is_fixed: bool = dataclasses.field(
        metadata={"static": True}
    )  # BatchNorm keeps its running statistics


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
                f"layers={self.layers}: no dense kernel in model {self.model.name!r}; choose other layers"
            )
        if self.pretrained is not None:
            same = jax.tree.structure(self.pretrained) == jax.tree.structure(shapes)
            pairs = zip(
                jax.tree.leaves(self.pretrained), jax.tree.leaves(shapes), strict=False
            )
            if not same or any(
                (jnp.shape(a), jnp.result_type(a)) != (b.shape, b.dtype) for a, b in pairs
            ):
                raise ValueError(
                    f"pretrained: no parameters of model {self.model.name!r}; give those of model.init"
                )
        super().__post_init__()

    def stack(self) -> Sequence[Layer]:
        """The layers of the base."""
        return self.model.stack()

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The parts below and above the cut."""
        return ("base", "lora")

    @property
    def input_dtype(self) -> Any:
        """Type of the inputs."""
        return self.model.input_dtype

    @property
    def takes_classes(self) -> bool:  # type: ignore[override]
        """True if the loss takes integer labels."""
        return self.model.takes_classes

    @property
    def _stem_layers(self) -> list[Any]:
        return []

    def _kernels(self, base: PyTree) -> dict[str, Any]:
        chosen = {
            name: params
            for name, params in base.items()
            if self.layers is None or name in self.layers
        }
        leaves = {_path_name(path): w for path, w in jax.tree.leaves_with_path(chosen)}
        return {
            name: w
            for name, w in leaves.items()
            if name.endswith("/kernel") and w.ndim == 2
        }

    def init(self, key: Key) -> SplitParams:
        """The initial parameters: A is normal with variance 1 / inputs, B is 0, so the model equals the base."""
        base = _layers(
            self.model.init(key) if self.pretrained is None else self.pretrained
        )

        def matrices(path: str, kernel: Array) -> dict[str, Array]:
            a = jax.random.normal(
                named_key(key, path), (kernel.shape[0], self.rank), kernel.dtype
            )
            b = jnp.zeros((self.rank, kernel.shape[1]), kernel.dtype)
            return {"a": a / jnp.sqrt(jnp.asarray(kernel.shape[0], a.dtype)), "b": b}

        return SplitParams(
            base,
            {
                path: matrices(path, kernel)
                for path, kernel in self._kernels(base).items()
            },
        )

    def represent(self, representation: PyTree, x: Array, key: Key | None = None) -> Any:
        """The inputs and the base: every layer needs the low-rank matrices."""
        base = jax.lax.stop_gradient(representation) if self.is_frozen else representation
        return LoRAFeatures(self._augmented(x, key), base, self.is_frozen)

    def rest(self, representation: PyTree, x: Array, key: Key | None = None) -> Any:
        """As `represent`, with frozen BatchNorm."""
        return dataclasses.replace(self.represent(representation, x, key), is_fixed=True)

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
        return _apply(
            model._sides[0],
            params,
            model._augmented(features.x, key),
            key,
            features.is_fixed,
        )

    def loss(self, logits: Array, y: Array) -> Array:
        """The loss of the base."""
        return self.model.loss(logits, y)


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
    """A model whose dense kernels are W + scaling A B (LoRA, Hu et al., 2022), cut between W and the matrices A and B.

    As for every cut, the algorithm decides which part is personal: FedPer and FedRep share the base, LG-FedAvg shares
    the matrices. With `is_frozen` the base has no gradient: LG-FedAvg then trains and sends only the matrices (FedIT,
    Zhang et al., 2024), FedPer trains only personal matrices; use no weight decay, which would move the base. Methods
    that need features (FedAS, FedPAC, FedProto, kNN-Per, MOON) do not work with LoRA.

    Args:
        model: the base; its cut does not matter.
        rank: r, of A (inputs, r) and B (r, outputs).
        scaling: alpha / r.
        layers: names of the layers of the base whose dense kernels get matrices; None for all. Convolutions and
            embeddings get none.
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
