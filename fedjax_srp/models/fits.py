"""Checks that a model fits the examples of a data set: shapes, types, labels, and its loss."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import Examples, member_of, name_of_data
from fedjax_srp.parts.checks import is_ours, per_example
from fedjax_srp.parts.part import reason_of, type_of

ROWS = 499, 503  # numbers of outputs and of labels that have no other meaning
KEPT = 64  # results for the shapes of models and examples, the most recently used ones
# Settings of JAX that decide which operations it accepts, and their types.
SETTINGS = ("enable_x64", "numpy_dtype_promotion", "numpy_rank_promotion")


class _Misfit(NamedTuple):
    """A need of a model, the kind of data that is there instead, and the remedy."""

    model: str
    data: str


def check_fits(model: Any, data: Any) -> None:
    """Raise a `ValueError` if the data, as far as known, do not fit the model."""
    misfit = _misfit(model, data)
    if misfit is not None:
        name = name_of_data(data)
        raise ValueError(
            f"model {model.name!r} {misfit.model}, data set {name!r} has {misfit.data}"
        )


def _misfit(model: Any, data: Any) -> _Misfit | None:
    examples = None
    is_sharded = member_of(data, "is_sharded")  # then checked before sharding
    if hasattr(data, "train_client") and not is_sharded:
        client = jax.eval_shape(lambda: data.train_client(jnp.int32(0)))
        if isinstance(client, Examples):
            examples = client
    shape = member_of(data, "example_shape")
    if not shape and examples is not None:
        shape = examples.x.shape[1:]
    num_classes = member_of(data, "num_classes") or 0
    has_classes = examples is None or jnp.issubdtype(examples.y.dtype, jnp.integer)
    # one target an example
    has_numbers = examples is None or has_classes or examples.y.ndim == 1
    if num_classes > model.num_classes and not (model.is_regression and has_numbers):
        labels = f"num_classes={num_classes}"
        if has_classes:
            labels = f"labels that reach {num_classes - 1}"
        return _Misfit(
            f"has {model.num_classes} classes",
            f"{labels}; build it with num_classes={num_classes}",
        )
    if shape is not None and tuple(shape) != model.input_shape:
        return _Misfit(
            f"takes {model.input_shape}",
            f"examples of shape {tuple(shape)}; build it with input_shape={tuple(shape)}",
        )
    if examples is None:
        return None
    if examples.y.shape[:1] == (0,):
        return _Misfit("trains on examples", "no rows in train_client")
    count = examples.count
    if count.shape != () or not jnp.issubdtype(count.dtype, jnp.integer):
        return _Misfit(
            "trains on examples",
            f"{count.dtype}{list(count.shape)} as count of train_client; "
            "give an int32 number, how many of the first rows are examples",
        )
    leaves, structure = jax.tree.flatten(model)
    settings = (getattr(jax.config, f"jax_{name}") for name in SETTINGS)
    return _misfit_of_examples(
        structure,
        tuple(map(_shape, leaves)),
        _shape(examples.x),
        _shape(examples.y),
        tuple(settings),
    )


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    shape, dtype, is_weak = type_of(leaf)
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=is_weak)


@functools.lru_cache(KEPT)
def _misfit_of_examples(
    structure: Any,
    leaves: tuple[jax.ShapeDtypeStruct, ...],
    x: jax.ShapeDtypeStruct,
    y: jax.ShapeDtypeStruct,
    settings: tuple[Any, ...],
) -> _Misfit | None:
    """The misfit of a model and examples; models that differ only in values share it."""
    del settings  # of the current thread, which tracing reads
    model = jax.tree.unflatten(structure, leaves)
    if model.takes_tokens != jnp.issubdtype(x.dtype, jnp.integer):
        if model.takes_tokens:
            return _Misfit(
                "takes integer tokens", f"{x.dtype} inputs; choose model='mlp'"
            )
        remedy = "choose model='lstm' for tokens, or give numbers as floats"
        return _Misfit("takes floats", f"{x.dtype} inputs; {remedy}")
    if model.takes_classes and not jnp.issubdtype(y.dtype, jnp.integer):
        remedy = (
            "choose srp.models.Split with a loss, or LinearRegression((dim,)), "
            "or give labels as integers"
        )
        return _Misfit("takes classes", f"labels that are {y.dtype}; {remedy}")

    inputs = jax.ShapeDtypeStruct(x.shape, model.input_dtype)
    key = jax.random.key(0)
    try:
        outputs = jax.eval_shape(
            lambda model, x: model.logits(model.init(key), x, key), model, inputs
        )
    except (TypeError, ValueError) as error:
        if is_ours(error):
            raise
        shapes = f"inputs of shape {inputs.shape}"
        failed = f"{shapes}, on which it fails: {reason_of(error)}"
        raise ValueError(
            f"model {model.name!r}: a batch has {failed}; mend its init or logits"
        ) from error
    returns = f"returns {outputs.shape[1:]} for an example"
    labels = f"labels of shape {y.shape[1:]}"
    if model.takes_classes:
        is_misshapen = outputs.shape != (*y.shape, model.num_classes)
    else:
        is_misshapen = outputs.ndim < y.ndim
    if is_misshapen:
        remedy = "flatten before a dense layer, as srp.models.Dense does"
        if outputs.shape == y.shape:
            remedy = "for several labels choose srp.models.Split with a loss of them"
        needed = (*y.shape[1:], model.num_classes)
        return _Misfit(returns, f"{labels}, which need outputs {needed}; {remedy}")
    try:
        # a regression may have integer labels
        with jax.numpy_dtype_promotion("standard"):
            losses = jax.eval_shape(_losses_of, model, outputs, y)
            per_example(losses, y.shape[0])
            is_broadcast = _pairs_all(model, outputs, y)
    except (TypeError, ValueError) as error:
        return _Misfit(returns, f"{labels}, on which its loss fails: {reason_of(error)}")
    if is_broadcast:
        return _Misfit(
            returns,
            f"{labels}, of which its loss pairs each with the outputs of all examples; "
            "take outputs[:, 0] where a model has one output",
        )
    return None


def _losses_of(model: Any, outputs: Any, y: Any) -> Any:
    return model.loss(outputs, y)


def _pairs_all(model: Any, outputs: Any, y: Any) -> bool:
    """Return True if its loss broadcasts outputs (batch, 1) and labels (batch,) to (batch, batch).

    It then takes another number of labels than of outputs, and computes values with both numbers in
    their shape.
    """
    num_outputs, num_labels = ROWS
    some_outputs = jax.ShapeDtypeStruct((num_outputs, *outputs.shape[1:]), outputs.dtype)
    some_labels = jax.ShapeDtypeStruct((num_labels, *y.shape[1:]), y.dtype)
    try:
        traced = jax.make_jaxpr(_losses_of)(model, some_outputs, some_labels)
    except Exception:  # of any type: the loss is not ours
        return False
    is_like_a_loss = [value.shape for value in traced.out_avals] == [(num_outputs,)]
    return is_like_a_loss and any(set(ROWS) <= set(shape) for shape in _shapes(traced))


def _shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the values that a function computes, also in functions that it calls."""
    for equation in jaxpr.eqns:
        for value in equation.outvars:
            yield getattr(value.aval, "shape", ())
        for called in jax.tree.leaves(equation.params):
            if hasattr(called, "eqns"):
                yield from _shapes(called)
