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

from fedjax_srp._checks import checked, short
from fedjax_srp.base import Array, Key
from fedjax_srp.models.split import Layer, Split, check_dtype, cross_entropy, without_lists
from fedjax_srp.parts import Count, as_annotated

Params = dict[str, Any]  # layer -> its parameters
Calls = dict[str, Array]  # layer -> its input, in the order of first calls


@dataclasses.dataclass(frozen=True)
class _Linen:
    module: nn.Module

    def init(self, key: Key, x: Array) -> tuple[Params, set[str]]:
        """The parameters, and the names of the module's other collections."""
        variables: Any = self.module.init(key, x)
        return variables.get("params", {}), {*variables} - {"params"}

    def run(self, params: Params, x: Array, head: str, features: Array | None = None) -> tuple[Array, Calls]:
        """The output; if there are `features`, the layer `head` gets these."""
        calls: Calls = {}

        def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            path = context.module.path
            if len(path) == 1 and context.method_name == "__call__" and path[0] not in calls:
                args = (features, *args[1:]) if path[0] == head and features is not None else args
                calls[path[0]] = args[0]
            return call(*args, **kwargs)

        with nn.intercept_methods(intercept):
            return self.module.apply({"params": params}, x), calls  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class _NNX:
    make: Callable[[Any], Any]  # rngs -> module

    def init(self, key: Key, x: Array) -> tuple[Params, set[str]]:
        """As `_Linen.init`."""
        from flax import nnx  # as slow to import as all of linen

        del x
        _, params, others = nnx.split(self.make(nnx.Rngs(key)), nnx.Param, ...)
        return nnx.to_pure_dict(params), {type(leaf).__name__ for _, leaf in nnx.to_flat_state(others)}

    def run(self, params: Params, x: Array, head: str, features: Array | None = None) -> tuple[Array, Calls]:
        """As `_Linen.run`."""
        from flax import nnx

        graph, state = nnx.split(nnx.eval_shape(lambda: self.make(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        module, calls = nnx.merge(graph, state), {}

        def listening(name: str, layer: Any) -> Callable[..., Any]:
            def call(given: Array, *args: Any, **kwargs: Any) -> Any:
                given = features if name == head and features is not None and name not in calls else given
                calls.setdefault(name, given)
                return layer(given, *args, **kwargs)

            return call

        for name, layer in list(vars(module).items()):
            if isinstance(layer, nnx.Module) and callable(layer):  # a list of modules is a module
                object.__setattr__(module, name, listening(name, layer))
        return module(x), calls


@dataclasses.dataclass(frozen=True)
class _Equinox:
    make: Callable[[Key], Any]  # key -> module

    def init(self, key: Key, x: Array) -> tuple[Params, set[str]]:
        """As `_Linen.init`."""
        del x
        module = self.make(key)
        params: Params = {}
        for layer, name, leaf in self._arrays(module):
            params.setdefault(layer, {})[name] = leaf
        eqx = importlib.import_module("equinox")
        others = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex))
        return params, {type(leaf).__name__ for leaf in others if isinstance(leaf, eqx.nn.StateIndex)}

    def run(self, params: Params, x: Array, head: str, features: Array | None = None) -> tuple[Array, Calls]:
        """As `_Linen.run`; the module takes one example."""
        eqx, module = importlib.import_module("equinox"), self.make(jax.random.key(0))
        given = [params[layer][name] for layer, name, _ in self._arrays(module)]
        static = eqx.filter(module, eqx.is_inexact_array, inverse=True)
        structure = jax.tree.structure(eqx.filter(module, eqx.is_inexact_array))
        order: list[str] = []

        def one(x: Array, features: Array | None) -> tuple[Array, list[Array]]:
            order.clear()
            inputs: list[Array] = []

            def listening(name: str, layer: Any) -> Any:
                def call(given: Array, *args: Any, **kwargs: Any) -> Any:
                    given = features if name == head and features is not None and name not in order else given
                    if name not in order:
                        order.append(name)
                        inputs.append(given)
                    return layer(given, *args, **kwargs)

                return call if isinstance(layer, eqx.Module) else layer

            whole = eqx.combine(jax.tree.unflatten(structure, given), static)
            for name, value in list(vars(whole).items()):
                if isinstance(value, list | tuple):
                    layers = type(value)(listening(f"{name}_{place}", layer) for place, layer in enumerate(value))
                    object.__setattr__(whole, name, layers)
                else:
                    object.__setattr__(whole, name, listening(name, value))
            return whole(x), inputs

        outputs, inputs = jax.vmap(one)(x, features)
        return outputs, dict(zip(order, inputs, strict=True))

    def _arrays(self, module: Any) -> list[tuple[str, str, Array]]:
        """(layer, name in it, array) of each parameter; of a list of layers, each is one."""
        eqx = importlib.import_module("equinox")
        found = []
        for path, leaf in jax.tree.leaves_with_path(eqx.filter(module, eqx.is_inexact_array)):
            depth = 2 if isinstance(getattr(module, path[0].name), list | tuple) else 1
            layer, name = (
                jax.tree_util.keystr(part, simple=True, separator="_") for part in (path[:depth], path[depth:])
            )
            found.append((layer, name, leaf))
        return found


def _source(module: Any) -> Any:
    if isinstance(module, nn.Module):
        return _Linen(without_lists(module))
    if (eqx := sys.modules.get("equinox")) is not None:  # else there is no module of it
        if isinstance(module, type):
            return (_Equinox if issubclass(module, eqx.Module) else _NNX)(module)
        with contextlib.suppress(Exception):  # any error of a module of nnx for a key
            if isinstance(eqx.filter_eval_shape(module, jax.random.key(0)), eqx.Module):
                return _Equinox(module)
    return _NNX(module)


class _Half(nn.Module):
    """The layers of a module before its layer `head`, or from there on.

    The other half runs as well, on zeros, and XLA removes it as dead code.
    """

    source: Any
    head: str
    input_shape: tuple[int, ...]
    dtype: Any
    is_above: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, *input_shape) -> features, or features -> outputs."""
        inputs = jnp.zeros((x.shape[0], *self.input_shape), self.dtype) if self.is_above else x
        shapes = jax.eval_shape(lambda: self.source.init(jax.random.key(0), inputs)[0])
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        order = list(jax.eval_shape(lambda: self.source.run(zeros, inputs, self.head))[1])
        above = order[order.index(self.head) :]
        own = [name for name in zeros if (name in above) == self.is_above]
        params: Any = self.param("layers", lambda key: {n: self.source.init(key, inputs)[0][n] for n in own})
        output, calls = self.source.run({**zeros, **params}, inputs, self.head, x if self.is_above else None)
        return output if self.is_above else calls[self.head]


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

    Layers are the modules that the outermost one calls, by their names in its parameters. The head is computed from the
    input of `head` alone, so no connection may bypass it. The module is called as `module(x)`, one of Equinox for each
    example, has no state but parameters, and is initialized by its library.

    Args:
        module: of linen; or a function of rngs that builds one of nnx, or of a key that builds one of Equinox.
        input_shape: of one example.
        num_classes: width of the output.
        head: name of the first layer of the head; `layers_2` for the third of a list.
        name: of the model in messages and records; default that of its class or function.
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
    source = _source(module)
    x = jnp.ones((2, *input_shape), dtype)
    try:
        params, others = source.init(jax.random.key(0), x)
        if others:
            raise ValueError(f"it keeps {', '.join(sorted(others))}, and only parameters are trained and averaged")
        outputs, calls = source.run(params, x, head)
    except Exception as error:  # whatever the library and the module say
        said, kinds = " ".join(str(error).split()), "rngs -> a module of nnx, or key -> a module of Equinox"
        raise ValueError(f"module={short(module)}: {said}; give a linen module, {kinds}") from error
    known = f"choose from {', '.join(calls)}" if calls else "the module has none, so give each an attribute of its own"
    problem = f"is no layer; {known}"
    if head in calls:
        above = list(calls)[list(calls).index(head) :]
        params = {name: p if name in above else jax.tree.map(jnp.zeros_like, p) for name, p in params.items()}
        alone = source.run(params, jnp.zeros_like(x), head, calls[head])[0]
        problem = "does not decide the outputs by its input alone; cut elsewhere"
        problem = "" if jnp.allclose(alone, outputs, rtol=1e-3, atol=1e-5) else problem
    if problem:
        raise ValueError(f"head={head!r} {problem}")
    below, above = (_Half(source, head, input_shape, jnp.dtype(dtype), is_above) for is_above in (False, True))
    maker = module.func if isinstance(module, functools.partial) else module
    of_class = getattr(maker, "__name__", type(maker).__name__)
    named = name or (of_class if of_class.isidentifier() else "module")
    halves = (Layer("representation", below), Layer("head", above))
    return Split(input_shape, num_classes, halves, name=named, loss=loss, dtype=dtype, cut="head")
