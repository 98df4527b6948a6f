"""Checks that a model fits the examples of a data set: shapes, types, labels, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Examples, member_of, name_of_data
from fedjax_srp.parts.checks import per_example
from fedjax_srp.parts.part import remedy_of

ROWS = 499, 503  # numbers of outputs and of labels that have no other meaning


def check_fits(model: Any, data: Any) -> None:
    """Raise a `ValueError` if the examples or labels of `data`, as far as known, do not fit the model."""
    client = None
    if hasattr(data, "train_client") and not member_of(
        data, "is_sharded"
    ):  # checked before sharding
        client = jax.eval_shape(lambda: data.train_client(jnp.int32(0)))
    examples = client if isinstance(client, Examples) else None
    shape = member_of(data, "example_shape") or (
        examples.x.shape[1:] if examples is not None else None
    )
    num_classes = member_of(data, "num_classes") or 0
    has_classes = examples is None or jnp.issubdtype(examples.y.dtype, jnp.integer)
    has_numbers = (
        examples is None or has_classes or examples.y.ndim == 1
    )  # one target for each example
    misfit = None
    if num_classes > model.num_classes and not (model.is_regression and has_numbers):
        found = (
            f"labels that reach {num_classes - 1}"
            if has_classes
            else f"num_classes={num_classes}"
        )
        misfit = (
            f"has {model.num_classes} classes",
            f"{found}; build it with num_classes={num_classes}",
        )
    elif shape is not None and tuple(shape) != model.input_shape:
        found = (
            f"examples of shape {tuple(shape)}; build it with input_shape={tuple(shape)}"
        )
        misfit = f"takes {model.input_shape}", found
    elif examples is not None and examples.y.shape[:1] == (0,):
        misfit = "trains on examples", "no rows in train_client"
    elif examples is not None and not _is_count(examples.count):
        found = (
            f"{examples.count.dtype}{list(examples.count.shape)} as count of train_client"
        )
        misfit = (
            "trains on examples",
            f"{found}; give an int32 number, how many of the first rows are examples",
        )
    elif examples is not None:
        misfit = _misfit(model, *examples[:2])
    if misfit is not None:
        raise ValueError(
            f"model {model.name!r} {misfit[0]}, data set {name_of_data(data)!r} has {misfit[1]}"
        )


def _is_count(count: Any) -> bool:
    return count.shape == () and jnp.issubdtype(count.dtype, jnp.integer)


def _misfit(model: Any, x: Any, y: Any) -> tuple[str, str] | None:
    """Describe the model and a client's examples (x, y) where they do not fit; None if they do."""
    if model.takes_tokens != jnp.issubdtype(x.dtype, jnp.integer):
        if model.takes_tokens:
            return "takes integer tokens", f"{x.dtype} inputs; choose model='mlp'"
        return (
            "takes floats",
            f"{x.dtype} inputs; choose model='lstm' for tokens, or give numbers as floats",
        )
    if model.takes_classes and not jnp.issubdtype(y.dtype, jnp.integer):
        regression = "choose srp.models.Split with a loss, or LinearRegression((dim,)), or give labels as integers"
        return "takes classes", f"labels that are {y.dtype}; {regression}"
    inputs = jax.ShapeDtypeStruct(x.shape, model.input_dtype)
    outputs = jax.eval_shape(
        lambda x, key: model.logits(model.init(key), x, key), inputs, jax.random.key(0)
    )
    returns, shape = (
        f"returns {outputs.shape[1:]} for an example",
        f"labels of shape {y.shape[1:]}",
    )
    if (
        outputs.shape != (*y.shape, model.num_classes)
        if model.takes_classes
        else outputs.ndim < y.ndim
    ):
        remedy = "flatten before a dense layer, as srp.models.Dense does"
        if outputs.shape == y.shape:
            remedy = "for several labels choose srp.models.Split with a loss of them"
        return (
            returns,
            f"{shape}, which need outputs {(*y.shape[1:], model.num_classes)}; {remedy}",
        )
    try:
        with jax.numpy_dtype_promotion(
            "standard"
        ):  # a regression may have integer labels
            per_example(jax.eval_shape(model.loss, outputs, y), len(y))
            is_broadcast = _pairs_all(model.loss, outputs, y)
    except (TypeError, ValueError) as error:
        remedy = remedy_of(error)  # after the first of JAX's lines
        reason = " ".join(
            (str(error).partition("\n")[0] if remedy else str(error)).split()
        )
        return returns, f"{shape}, on which its loss fails: {reason}{remedy}"
    if is_broadcast:
        remedy = "take outputs[:, 0] where a model has one output"
        return (
            returns,
            f"{shape}, of which its loss pairs each with the outputs of all examples; {remedy}",
        )
    return None


def _pairs_all(loss: Callable[[Array, Array], Array], outputs: Any, y: Any) -> bool:
    """Return True if a loss broadcasts outputs (batch, 1) and labels (batch,) to (batch, batch).

    It then takes another number of labels than of outputs, and computes values with both numbers in their shape.
    """
    given = [
        jax.ShapeDtypeStruct((rows, *of.shape[1:]), of.dtype)
        for rows, of in zip(ROWS, (outputs, y), strict=True)
    ]
    try:
        traced = jax.make_jaxpr(loss)(*given)
    except Exception:  # of any type: the loss is not ours
        return False
    is_like_a_loss = [value.shape for value in traced.out_avals] == [ROWS[:1]]
    return is_like_a_loss and any(set(ROWS) <= set(shape) for shape in _shapes(traced))


def _shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of the values that a traced function computes, also within functions that it calls."""
    for equation in jaxpr.eqns:
        yield from (getattr(value.aval, "shape", ()) for value in equation.outvars)
        for called in jax.tree.leaves(equation.params):
            if hasattr(called, "eqns"):
                yield from _shapes(called)
