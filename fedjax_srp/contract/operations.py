"""Operations of a client's local work, counted in the traced program, for clocks that compute times from them.

An operation is a multiplication or an addition of a matrix product or a convolution; everything else is free. A loop's
body counts once per trip; trip counts follow from the scalars of a client's data (its number of examples) and its units
of work. Steps and convolutions count the same on every backend: plain ones, without products with padding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fedjax_srp.base import (
    Array,
    Examples,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    ParticipationPolicy,
    PyTree,
    WorkCosts,
)
from fedjax_srp.contract.checks import (
    GRADIENT,
    AlgorithmTracer,
    Shapes,
    abstract_key,
    check_algorithm,
    static_costs_as,
)
from fedjax_srp.contract.messages import client_bytes
from fedjax_srp.contract.peak_memory import inner_jaxprs, opened, unstacked
from fedjax_srp.xla.backend import traced_for

Known = Sequence[Array | None]  # values of scalars, None if unknown
Total = Array | float
# Units of work and the scalars of a client's data -> operations of a participant in a round.
ClientOperations = Callable[[Array, Sequence[Array]], Total]


def work_costs(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    data: FederatedSource,
    shapes: Shapes,
) -> Callable[[FederatedSource], WorkCosts]:
    """Return a compiled function of the data that counts the costs of a round for each client.

    Each client is charged for its own number of examples; the last batch of an epoch counts as a full one. An algorithm
    with `Charges.costs_as` costs what those algorithms cost.

    Raises:
        ValueError: the length of a loop does not follow from the scalars of a client's data and its units of work.
    """
    levels = static_costs_as(algorithm)
    if levels is not None:
        batch = batch_operations(algorithm, shapes.train)
        return _costs_by_work(levels, policy, data, batch)
    return _own_costs(algorithm, policy, data, shapes)


def _own_costs(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    data: FederatedSource,
    shapes: Shapes,
) -> Callable[[FederatedSource], WorkCosts]:
    """`work_costs` of the algorithm itself."""
    train = shapes.train
    count = _client_operations(algorithm, policy, data, shapes, train)
    count_longer = None
    if isinstance(train, Examples):
        # With one more row, to find the operations of a padded row.
        longer = train._replace(x=_with_row(train.x), y=_with_row(train.y))
        count_longer = _client_operations(algorithm, policy, data, shapes, longer)

    def of_client(data: FederatedSource, client_id: Array) -> tuple[Array, Array]:
        examples = data.train_client(client_id)
        scalars = [leaf for leaf in jax.tree.leaves(examples) if not leaf.ndim]

        def operations(work: int) -> Array:
            units = jnp.int32(work)
            total = jnp.asarray(count(units, scalars), float)
            if count_longer is None:
                return total
            of_row = jnp.asarray(count_longer(units, scalars), float) - total
            padding = (examples.y.shape[0] - examples.count).astype(float)
            return total - of_row * padding

        # A line through the counts of one unit of work and of two.
        one = operations(1)
        two = operations(2)
        each_unit = two - one
        once = 2 * one - two
        return each_unit, once

    sizes = client_bytes(shapes)
    batch = batch_operations(algorithm, train)

    @jax.jit
    def costs(data: FederatedSource) -> WorkCosts:
        ids = jnp.arange(data.num_clients, dtype=jnp.int32)
        unit, once = jax.vmap(of_client, in_axes=(None, 0))(data, ids)
        down = jnp.asarray(sizes.received, float)
        up = jnp.asarray(sizes.sent, float)
        return WorkCosts(unit, once, down, up, jnp.asarray(batch, float))

    return costs


def batch_operations(algorithm: FederatedAlgorithm, train: PyTree) -> float:
    """Operations of a gradient step of the algorithm's model on a batch of its training; 0 without these."""
    model: Any = getattr(algorithm, "model", None)
    batch_size: Any = getattr(getattr(algorithm, "training", None), "batch_size", None)
    # a user's fields of these names may be something else
    is_model = hasattr(model, "logits") and hasattr(model, "loss")
    if not (is_model and isinstance(batch_size, int) and isinstance(train, Examples)):
        return 0.0
    batch_size = min(batch_size, train.y.shape[0])
    of_batch = lambda leaf: jax.ShapeDtypeStruct(
        (batch_size, *leaf.shape[1:]), leaf.dtype
    )

    def loss(params: PyTree, key: Key, x: Array, y: Array) -> Array:
        return jnp.sum(model.loss(model.logits(params, x, key), y))

    key = abstract_key()
    params = jax.eval_shape(model.init, key)
    with traced_for("tpu"):  # as in `_client_operations`
        step = jax.make_jaxpr(jax.grad(loss))
        program = step(params, key, of_batch(train.x), of_batch(train.y))
    operations, _ = _count(program.jaxpr, program.consts, [None] * len(program.in_avals))
    return float(operations)


def _with_row(leaf: Any) -> jax.ShapeDtypeStruct:
    rows, *shape = leaf.shape
    return jax.ShapeDtypeStruct((rows + 1, *shape), leaf.dtype)


def _costs_by_work(
    levels: Sequence[Sequence[FederatedAlgorithm]],
    policy: ParticipationPolicy,
    data: FederatedSource,
    batch: float,
) -> Callable[[FederatedSource], WorkCosts]:
    """`work_costs` of the algorithms that clients run with 1, 2, ... units of work, see `costs_as`."""
    counters: dict[FederatedAlgorithm, Callable[[FederatedSource], WorkCosts]] = {}
    for algorithm in itertools.chain(*levels):
        if algorithm not in counters:
            shapes = check_algorithm(algorithm, data, (), policy)
            counters[algorithm] = _own_costs(algorithm, policy, data, shapes)

    @jax.jit
    def costs(data: FederatedSource) -> WorkCosts:
        by_algorithm = {each: count(data) for each, count in counters.items()}
        means, downs, ups = [], [], []
        for level in levels:
            of_level = [by_algorithm[algorithm] for algorithm in level]
            totals = jnp.stack([each.operations + each.once for each in of_level])
            means.append(jnp.mean(totals, axis=0))
            downs.append(of_level[-1].bytes_down)
            ups.append(of_level[-1].bytes_up)
        return WorkCosts(
            operations=jnp.stack(means, axis=1),
            once=jnp.zeros(data.num_clients),
            bytes_down=jnp.stack(downs),
            bytes_up=jnp.stack(ups),
            batch=jnp.asarray(batch, float),
        )

    return costs


def _client_operations(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    data: FederatedSource,
    shapes: Shapes,
    train: PyTree,
) -> ClientOperations:
    """Trace the client functions of a round with data of these shapes, for counts of their operations."""
    tracer = AlgorithmTracer(algorithm, data, False, shapes.server, shapes.state, train)
    programs: dict[str, ClosedJaxpr] = {}  # by the name of the function

    def trace(name: str, function: Callable[[Any], Any], broadcast: PyTree) -> None:
        # On a TPU convolutions stay convolutions and no step is taken in the span of the examples.
        with traced_for("tpu"):
            traced = tracer.client_trace(name, function, broadcast)
        programs[f"{tracer.name}: {name}.client"] = traced.program

    for i, phase in enumerate(algorithm.phases):
        trace(phase.name, lambda a, i=i: a.phases[i].client, shapes.down[i])
    if policy.needs_global_gradient:
        trace(GRADIENT, lambda a: a.gradient, shapes.down[0])
    leaves = jax.tree.leaves(train)
    # Before the units of work come the algorithm's floats and three other integers of the context.
    first: list[Array | None] = [None] * (len(jax.tree.leaves(algorithm)) + 3)

    def operations(work: Array, scalars: Sequence[Array]) -> Total:
        remaining = iter(scalars)
        of_data = [None if leaf.shape else next(remaining) for leaf in leaves]
        total: Total = 0.0
        for where, program in programs.items():
            num_known = len(first) + 1 + len(of_data)
            others = [None] * (len(program.jaxpr.invars) - num_known)
            known = [*first, work, *others, *of_data]
            try:
                count, _ = _count(program.jaxpr, program.consts, known)
            except _UnknownLengthError:
                raise ValueError(
                    f"{where}: a loop's length is known only while it runs, so that its operations cannot be counted; "
                    "use jax.lax.fori_loop from 0 to a number that follows from the client's count and context.work, "
                    "or give the clock its costs"
                ) from None
            total = total + count
        return total

    return operations


class _UnknownLengthError(Exception):
    """A loop with products and an unknown trip count."""


def _count(
    jaxpr: Jaxpr, consts: Sequence[Any], known: Known
) -> tuple[Total, list[Array | None]]:
    """Operations of a traced function, and the known values of its results."""
    values: dict[Any, Any] = dict(zip(jaxpr.invars, known, strict=True))
    constants = zip(jaxpr.constvars, consts, strict=True)
    values |= {v: constant for v, constant in constants if not jnp.shape(constant)}

    def read(variable: Any) -> Any:
        if not isinstance(variable, Literal):
            return values.get(variable)
        if jnp.shape(variable.val):
            return None
        return jnp.asarray(variable.val, variable.aval.dtype)  # type: ignore[attr-defined]

    total: Total = 0.0
    for equation in jaxpr.eqns:
        more, results = _equation(equation, list(map(read, equation.invars)))
        total = total + more
        values |= zip(equation.outvars, results, strict=True)
    return total, list(map(read, jaxpr.outvars))


def _equation(equation: Any, known: Known) -> tuple[Total, Known]:
    """Operations of an equation, and the known values of its results."""
    nothing = [None] * len(equation.outvars)
    match equation.primitive.name:
        case "dot_general":
            return _product(equation), nothing
        case "conv_general_dilated":
            return _convolution(equation), nothing
        case "while":
            return _while(equation.params, known)
        case "scan":
            return _scan(equation, known)
        case "cond":
            return _cond(equation.params["branches"], known), nothing
    for inner in inner_jaxprs(equation.params.values()):
        body, consts = opened(inner)
        if len(body.invars) != len(known):
            known = [None] * len(body.invars)
        inside, results = _count(body, consts, known)
        return inside, results if len(results) == len(nothing) else nothing
    is_known = len(known) > 0 and not any(value is None for value in known)
    has_scalars = not any(v.aval.shape for v in equation.outvars)
    if not is_known or not has_scalars or equation.effects:
        return 0.0, nothing
    results = equation.primitive.bind(*known, **equation.params)
    return 0.0, results if equation.primitive.multiple_results else [results]


def _scan(equation: Any, known: Known) -> tuple[Total, Known]:
    body, consts = opened(equation.params["jaxpr"])
    # JAX 0.11 has no number of these.
    num_carry = unstacked(equation.outvars, body.outvars)
    num_consts = unstacked(equation.invars, body.invars) - num_carry
    first_row = num_consts + num_carry
    kept = _kept(body, num_consts, known[num_consts:first_row])
    rows = [None] * (len(known) - first_row)
    inside, _ = _count(body, consts, [*known[:num_consts], *kept, *rows])
    stacked = [None] * (len(equation.outvars) - num_carry)
    return equation.params["length"] * inside, [*kept, *stacked]


def _cond(branches: Sequence[Any], known: Known) -> Total:
    """Operations of the branch that is taken, of the longest one where that is unknown."""
    index, *operands = known
    counts = [_count(*opened(branch), operands)[0] for branch in branches]
    totals = jnp.stack([jnp.asarray(count, float) for count in counts])
    if index is None:
        return totals.max()
    return totals[index.astype(jnp.int32)]


def _kept(body: Jaxpr, first: int, carry: Known) -> list[Array | None]:
    """Entries of a carry that are known in every trip, as the body returns them unchanged."""
    entries = zip(carry, body.invars[first:], body.outvars, strict=False)
    return [value if variable is out else None for value, variable, out in entries]


def _while(params: Any, known: Known) -> tuple[Total, Known]:
    num_cond = params["cond_nconsts"]
    num_body = params["body_nconsts"]
    first = num_cond + num_body
    carry = known[first:]
    body, consts = opened(params["body_jaxpr"])
    kept = _kept(body, num_body, carry)
    inside, _ = _count(body, consts, [*known[num_cond:first], *kept])
    if isinstance(inside, float) and not inside:
        return 0.0, kept
    trips = _trips(params, body, known[:num_cond], carry, kept)
    if trips is None:
        raise _UnknownLengthError
    return trips * inside, kept


def _trips(
    params: Any, body: Jaxpr, consts: Known, carry: Known, kept: Known
) -> Array | None:
    """() float: trip count of a loop that counts up by one to a bound; None for other loops."""
    cond, _ = opened(params["cond_jaxpr"])
    if [equation.primitive.name for equation in cond.eqns] != ["lt"]:
        return None
    counter, bound = cond.eqns[0].invars
    counters = cond.invars[len(consts) :]
    if counter not in counters:
        return None
    index = counters.index(counter)
    start = carry[index]
    if isinstance(bound, Literal):
        end = jnp.asarray(bound.val)
    else:
        end = dict(zip(cond.invars, [*consts, *kept], strict=True)).get(bound)
    before = body.invars[params["body_nconsts"] + index]
    if start is None or end is None or not _adds_one(body, before, body.outvars[index]):
        return None
    return jnp.maximum(end - start.astype(end.dtype), 0).astype(float)


def _adds_one(body: Jaxpr, before: Any, after: Any) -> bool:
    """True if `after` is `before + 1`."""
    for equation in body.eqns:
        if after in equation.outvars:
            is_one = [isinstance(v, Literal) and v.val == 1 for v in equation.invars]
            return (
                equation.primitive.name == "add"
                and before in equation.invars
                and any(is_one)
            )
    return False


def _product(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    length = math.prod(shape[axis] for axis in contracted)
    return 2.0 * length * equation.outvars[0].aval.size


def _convolution(equation: Any) -> float:
    """2 * products of an entry of the image with one of the kernel, without padding and holes."""
    params = equation.params
    image, kernel = (v.aval.shape for v in equation.invars)
    out = equation.outvars[0].aval.shape
    image_axes, kernel_axes, out_axes = params["dimension_numbers"]
    pairs = 1.0
    for i, (low, _) in enumerate(params["padding"]):
        axis = i + 2
        hole = params["lhs_dilation"][i]
        starts = np.arange(out[out_axes[axis]]) * params["window_strides"][i] - low
        offsets = np.arange(kernel[kernel_axes[axis]]) * params["rhs_dilation"][i]
        place = starts[:, None] + offsets
        last = (image[image_axes[axis]] - 1) * hole
        is_entry = (place >= 0) & (place <= last) & (place % hole == 0)
        pairs *= float(np.sum(is_entry))
    return 2.0 * pairs * out[out_axes[0]] * out[out_axes[1]] * kernel[kernel_axes[1]]
