"""Any module of flax or Equinox as a model, cut in front of one of its layers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Key
from fedjax_srp.models.split import (
    Layer,
    Split,
    check_dtype,
    cross_entropy,
    without_lists,
)
from fedjax_srp.parts.checks import checked, short
from fedjax_srp.parts.part import Count, as_annotated

Params = dict[str, Any]  # layer -> its parameters
Inputs = dict[str, Array]  # layer -> its input, in the order of first calls


class _Recorded:
    """A layer with another call; its attributes can be read as before."""

    def __init__(self, layer: Any, call: Callable[..., Any]) -> None:
        self.layer = layer
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


# The names of these classes and of the fields of `_Half` are in the records of runs.
@dataclasses.dataclass(frozen=True)
class _Linen:
    module: nn.Module

    def init(self, key: Key, x: Array) -> tuple[Params, set[str]]:
        """Return the parameters, and the names of the module's other collections."""
        variables: Any = self.module.init(key, x)
        return variables.get("params", {}), {*variables} - {"params"}

    def run(
        self, params: Params, x: Array, head: str, features: Array | None = None
    ) -> tuple[Array, Inputs]:
        """Return the output and the layers' inputs; `features` replace the input of `head`."""
        inputs: Inputs = {}

        def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            path = context.module.path
            if (
                len(path) == 1
                and context.method_name == "__call__"
                and path[0] not in inputs
            ):
                if path[0] == head and features is not None:
                    args = (features, *args[1:])
                inputs[path[0]] = args[0]
            return call(*args, **kwargs)

        with nn.intercept_methods(intercept):
            return self.module.apply({"params": params}, x), inputs  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class _NNX:
    make: Callable[[Any], Any]  # rngs -> module

    def init(self, key: Key, x: Array) -> tuple[Params, set[str]]:
        """As `_Linen.init`."""
        from flax import nnx  # importing it takes as long as all of linen

        _, params, others = nnx.split(self.make(nnx.Rngs(key)), nnx.Param, ...)
        kinds = {type(leaf).__name__ for _, leaf in nnx.to_flat_state(others)}
        return nnx.to_pure_dict(params), kinds

    def run(
        self, params: Params, x: Array, head: str, features: Array | None = None
    ) -> tuple[Array, Inputs]:
        """As `_Linen.run`."""
        from flax import nnx

        graph, state = nnx.split(nnx.eval_shape(lambda: self.make(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        module = nnx.merge(graph, state)
        inputs: Inputs = {}

        def recording(name: str, layer: Any) -> _Recorded:
            def call(layer_input: Array, *args: Any, **kwargs: Any) -> Any:
                if name not in inputs:
                    if name == head and features is not None:
                        layer_input = features
                    inputs[name] = layer_input
                return layer(layer_input, *args, **kwargs)

            return _Recorded(layer, call)

        for name, layer in list(vars(module).items()):
            # a list of modules is a module too, but not callable
            if isinstance(layer, nnx.Module) and callable(layer):
                object.__setattr__(module, name, recording(name, layer))
        return module(x), inputs


@dataclasses.dataclass(frozen=True)
class _Equinox:
    make: Callable[[Key], Any]  # key -> module

    def init(self, key: Key, x: Array) -> tuple[Params, set[str]]:
        """As `_Linen.init`."""
        eqx = importlib.import_module("equinox")
        module = self.make(key)
        params: Params = {}
        for layer, name, leaf in self._arrays(module):
            params.setdefault(layer, {})[name] = leaf

        def is_state(leaf: Any) -> bool:
            return isinstance(leaf, eqx.nn.StateIndex)

        leaves = jax.tree.leaves(module, is_leaf=is_state)
        return params, {type(leaf).__name__ for leaf in leaves if is_state(leaf)}

    def run(
        self, params: Params, x: Array, head: str, features: Array | None = None
    ) -> tuple[Array, Inputs]:
        """As `_Linen.run`; the module takes one example."""
        eqx = importlib.import_module("equinox")
        module = self.make(jax.random.key(0))
        leaves = [params[layer][name] for layer, name, _ in self._arrays(module)]
        static = eqx.filter(module, eqx.is_inexact_array, inverse=True)
        structure = jax.tree.structure(eqx.filter(module, eqx.is_inexact_array))
        called: list[str] = []

        def run_example(x: Array, features: Array | None) -> tuple[Array, list[Array]]:
            called.clear()
            inputs: list[Array] = []

            def recording(name: str, layer: Any) -> Any:
                if not isinstance(layer, eqx.Module):
                    return layer

                def call(layer_input: Array, *args: Any, **kwargs: Any) -> Any:
                    if name not in called:
                        if name == head and features is not None:
                            layer_input = features
                        called.append(name)
                        inputs.append(layer_input)
                    return layer(layer_input, *args, **kwargs)

                return _Recorded(layer, call)

            module = eqx.combine(jax.tree.unflatten(structure, leaves), static)
            for name, value in list(vars(module).items()):
                if isinstance(value, list | tuple):
                    layers = [
                        recording(f"{name}_{i}", layer) for i, layer in enumerate(value)
                    ]
                    recorded = type(value)(layers)
                else:
                    recorded = recording(name, value)
                object.__setattr__(module, name, recorded)
            return module(x), inputs

        outputs, inputs = jax.vmap(run_example)(x, features)
        return outputs, dict(zip(called, inputs, strict=True))

    def _arrays(self, module: Any) -> list[tuple[str, str, Array]]:
        """Return (layer, name in it, array) of each parameter; a list's elements are layers."""
        eqx = importlib.import_module("equinox")

        def joined(path: Any) -> str:
            return jax.tree_util.keystr(path, simple=True, separator="_")

        arrays = []
        for path, leaf in jax.tree.leaves_with_path(
            eqx.filter(module, eqx.is_inexact_array)
        ):
            depth = 2 if isinstance(getattr(module, path[0].name), list | tuple) else 1
            arrays.append((joined(path[:depth]), joined(path[depth:]), leaf))
        return arrays


def _source(module: Any) -> Any:
    if isinstance(module, nn.Module):
        return _Linen(without_lists(module))
    eqx = sys.modules.get("equinox")
    if eqx is None:  # not imported: no module can be of Equinox
        return _NNX(module)
    if isinstance(module, type):
        is_equinox = issubclass(module, eqx.Module)
    else:
        is_equinox = False
        # modules of nnx may raise any error when given a key
        with contextlib.suppress(Exception):
            made = eqx.filter_eval_shape(module, jax.random.key(0))
            is_equinox = isinstance(made, eqx.Module)
    if is_equinox:
        return _Equinox(module)
    return _NNX(module)


def _moved(params: Params) -> Params:
    """Add small positive numbers to parameters, so that none is zero as biases are at first."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = []
    for key, leaf in zip(keys, leaves, strict=True):
        moved.append(leaf + jax.random.uniform(key, leaf.shape, leaf.dtype, 0.05, 0.1))
    return jax.tree.unflatten(structure, moved)


class _Half(nn.Module):
    """The layers of a module below its layer `head`, or from there on.

    The other half runs too, with parameters of zero, and XLA removes it as dead code.
    """

    source: Any
    head: str
    input_shape: tuple[int, ...]
    dtype: Any
    is_above: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, *input_shape) -> features, or features -> outputs."""
        inputs = (
            jnp.zeros((x.shape[0], *self.input_shape), self.dtype) if self.is_above else x
        )
        shapes = jax.eval_shape(lambda: self.source.init(jax.random.key(0), inputs)[0])
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        # in the order of calls, unlike a dict that `eval_shape` returns
        names: list[str] = []
        jax.eval_shape(lambda: names.extend(self.source.run(zeros, inputs, self.head)[1]))
        above = names[names.index(self.head) :]

        def init_half(key: Key) -> Params:
            params, _ = self.source.init(key, inputs)
            return {
                name: params[name] for name in zeros if (name in above) == self.is_above
            }

        params: Any = {**zeros, **self.param("layers", init_half)}
        if self.is_above:
            output, _ = self.source.run(params, inputs, self.head, features=x)
            return output
        _, layer_inputs = self.source.run(params, inputs, self.head)
        return layer_inputs[self.head]


@checked
def from_module(
    module: nn.Module | Callable[[Any], Any],
    input_shape: tuple[int, ...],
    num_classes: int,
    head: str,
    name: str | None = None,
    loss: Callable[[Array, Array], Array] = cross_entropy,
    dtype: Any = jnp.float32,
) -> Split:
    """Make a model of any module of linen, nnx or Equinox, cut in front of one of its layers.

    Layers are the modules that the outermost one calls, by their names in its parameters. The head
    is computed from the input of `head` alone, so no connection may bypass it. The module is called
    as `module(x)` (a module of Equinox with one example at a time), has no state but parameters,
    and is initialized by its library.

    Args:
        module: a linen module; a function of rngs that builds one of nnx, or of a key that builds
            one of Equinox.
        input_shape: of one example.
        num_classes: width of the output.
        head: name of the first layer of the head; `layers_2` for the third of a list.
        name: of the model in messages and records; default the name of the class or function.
        loss: `(outputs, y) -> (batch,)`, of each example.
        dtype: of the inputs; integers are tokens.

    Example:
        >>> import flax.linen as nn, fedjax_srp as srp
        >>> module = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(2)])
        >>> srp.models.from_module(module, (30,), 2, head="layers_2").layer_names
        ('representation', 'head')
    """
    check_dtype(dtype, jnp.number)
    input_shape = as_annotated("input_shape", input_shape, tuple[Count, ...])
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise ValueError(f"module={short(module)} is a class of linen; call it")
    source = _source(module)
    x = jnp.ones((2, *input_shape), dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        # not constant, or a module that normalises its input sees zeros
        x = jax.random.uniform(jax.random.key(2), x.shape, dtype)
    others: set[str] = set()
    try:
        params, others = source.init(jax.random.key(0), x)
        if others:
            raise ValueError(
                f"it keeps {', '.join(sorted(others))}, "
                "but only parameters are trained and averaged"
            )
        params = _moved(params)
        outputs, inputs = source.run(params, x, head)
    except Exception as error:  # of any type: the library and the module are not ours
        reason = " ".join(str(error).split())
        remedy = (
            "give a linen module, rngs -> a module of nnx, or key -> a module of Equinox, "
            "whose layers are called in plain Python (not by nnx.scan)"
        )
        if others or isinstance(module, nn.Module):
            remedy = (
                "for dropout and BatchNorm take srp.models.Split: the noise of a layer, "
                "and a layer of its own"
            )
        raise ValueError(f"module={short(module)}: {reason}; {remedy}") from error
    if head not in inputs:
        remedy = "the module has none; make each layer an attribute"
        if inputs:
            remedy = f"choose from {', '.join(inputs)}"
        raise ValueError(f"head={head!r} is no layer; {remedy}")
    names = list(inputs)
    for name_below in set(params) - set(names[names.index(head) :]):
        params[name_below] = jax.tree.map(jnp.zeros_like, params[name_below])
    from_features, _ = source.run(params, jnp.zeros_like(x), head, inputs[head])
    if not jnp.allclose(from_features, outputs, rtol=1e-3, atol=1e-5):
        raise ValueError(
            f"head={head!r} is bypassed: the outputs depend on more than its input; cut elsewhere"
        )
    below = _Half(source, head, input_shape, jnp.dtype(dtype), is_above=False)
    layers = (Layer("representation", below), Layer("head", below.clone(is_above=True)))
    factory = module.func if isinstance(module, functools.partial) else module
    factory_name = getattr(factory, "__name__", type(factory).__name__)
    model_name = name or (factory_name if factory_name.isidentifier() else "module")
    return Split(
        input_shape,
        num_classes,
        layers,
        name=model_name,
        loss=loss,
        dtype=dtype,
        cut="head",
    )
